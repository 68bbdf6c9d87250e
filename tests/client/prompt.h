// Tests of the client share these: a server that can be stopped, and prompts with their pages.
#ifndef KVSTOW_TESTS_CLIENT_PROMPT_H_
#define KVSTOW_TESTS_CLIENT_PROMPT_H_

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/key_chain.h"
#include "kernels/page/page.h"

namespace kvstow {

// A server that a test may stop and start again at the same address.
class ServerUnderTest {
 public:
  virtual ~ServerUnderTest() = default;
  virtual std::string address() const = 0;
  virtual void Kill() = 0;  // at once; what runs breaks off
  virtual void Start() = 0;
};

inline KvSpec SmallSpec() {
  KvSpec spec;
  spec.model = "test/small";
  spec.revision = "1";
  spec.layers = 4;
  spec.kv_heads = 2;
  spec.head_dim_k = spec.head_dim_v = 64;
  spec.page_tokens = 64;
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 100000};
  return spec;
}

// K and V of a prompt as a worker has them: pages of finite F16 numbers, the last one shorter.
struct Prompt {
  KvSpec spec;
  std::vector<std::string> keys;
  std::vector<std::vector<uint8_t>> pages;

  Prompt(const KvSpec& s, uint32_t tokens, int32_t seed) : spec(s) {
    std::vector<int32_t> ids(tokens);
    for (uint32_t i = 0; i < tokens; ++i) ids[i] = seed * 1000003 + static_cast<int32_t>(i);
    keys = PageKeys({}, ids, spec.page_tokens);
    uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
    for (size_t p = 0; p < keys.size(); ++p) {
      std::vector<uint8_t> page(PageBytes(spec, Tokens(p, tokens)));
      for (size_t i = 0; i + 1 < page.size(); i += 2) {
        state = state * 1664525u + 1013904223u;
        page[i] = static_cast<uint8_t>(state >> 24);
        page[i + 1] = static_cast<uint8_t>(0x38 | (state >> 16 & 0x83));  // about +-0.5..2
      }
      pages.push_back(std::move(page));
    }
  }
  uint32_t Tokens(size_t page, uint32_t total) const {
    return std::min(spec.page_tokens, total - static_cast<uint32_t>(page) * spec.page_tokens);
  }
  std::vector<PagePut> Puts() const {
    std::vector<PagePut> puts;
    for (size_t p = 0; p < pages.size(); ++p) {
      puts.push_back({.key = keys[p],
                      .raw = pages[p],
                      .tokens = static_cast<uint32_t>(pages[p].size() / BytesPerToken(spec)),
                      .first_position = p * spec.page_tokens});
    }
    return puts;
  }
};

// Buffers for pages of a prompt, and the request that fills them.
struct Fetch {
  std::vector<std::vector<uint8_t>> buffers;
  std::vector<PageGet> gets;

  Fetch(const KvSpec& spec, const std::vector<std::string>& keys)
      : buffers(keys.size(), std::vector<uint8_t>(PageBytes(spec, spec.page_tokens))) {
    for (size_t p = 0; p < keys.size(); ++p) gets.push_back({.key = keys[p], .out = buffers[p]});
  }
  // Buffers of the very size of each page.
  explicit Fetch(const Prompt& prompt) : Fetch(prompt.spec, prompt.keys) {
    for (size_t p = 0; p < gets.size(); ++p) {
      buffers[p].resize(prompt.pages[p].size());
      gets[p].out = buffers[p];
    }
  }
};

inline std::vector<PageOutcome> OutcomesOf(const auto& results) {
  std::vector<PageOutcome> out;
  for (const auto& r : results) out.push_back(r.outcome);
  return out;
}

inline void PrintTo(PageOutcome outcome, std::ostream* out) { *out << OutcomeName(outcome); }

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CLIENT_PROMPT_H_
