#include "client/key_chain.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/digest.h"

namespace kvstow {
namespace {

constexpr absl::string_view kDomain = "kvstow key v1";
constexpr size_t kKeyBytes = 32;

}  // namespace

std::string PageKey(absl::string_view parent, std::span<const int32_t> tokens,
                    std::span<const std::string> extras) {
  const std::string root(kKeyBytes, '\0');
  ByteWriter out;
  out.PutBytes(AsBytes(kDomain));
  out.PutBytes(AsBytes(parent.empty() ? absl::string_view(root) : parent));
  out.Put(static_cast<uint32_t>(tokens.size()));
  out.PutBytes({reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size_bytes()});
  for (const std::string& extra : extras) {
    out.Put(static_cast<uint32_t>(extra.size()));
    out.PutBytes(AsBytes(extra));
  }
  return std::string(AsString(Sha256(AsBytes(out.bytes()))));
}

std::vector<std::string> PageKeys(std::span<const std::string> extras,
                                  std::span<const int32_t> tokens, uint32_t page_tokens,
                                  std::span<const std::vector<std::string>> page_extras) {
  std::vector<std::string> keys;
  if (page_tokens == 0) return keys;
  keys.reserve(tokens.size() / page_tokens + 1);
  for (size_t at = 0; at < tokens.size(); at += page_tokens) {
    const auto page = tokens.subspan(at, std::min<size_t>(page_tokens, tokens.size() - at));
    std::vector<std::string> all;
    if (keys.empty()) all.assign(extras.begin(), extras.end());
    if (keys.size() < page_extras.size()) {
      const std::vector<std::string>& own = page_extras[keys.size()];
      all.insert(all.end(), own.begin(), own.end());
    }
    keys.push_back(PageKey(keys.empty() ? "" : keys.back(), page, all));
  }
  return keys;
}

}  // namespace kvstow
