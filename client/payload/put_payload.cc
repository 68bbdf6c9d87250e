#include "client/payload/put_payload.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "client/payload/messages.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

absl::string_view CannotPut(const PagePut& page) {
  const bool keyed = !page.key.empty() && page.key.size() <= kMaxKeyBytes;
  return keyed && !page.raw.empty() ? "" : "a page needs bytes and a key of 1..64 bytes";
}

uint64_t TotalBytes(std::span<const SharedBytes> parts) {
  uint64_t bytes = 0;
  for (const SharedBytes& part : parts) bytes += part.size();
  return bytes;
}

absl::StatusOr<PutPayload> MakePutPayload(const PagePut& page, const SpacePayload& space,
                                          bool encoded, const std::optional<Digest128>& digest,
                                          std::shared_ptr<const void> owner,
                                          const PageCoder& coder) {
  PutPayload out;
  if (encoded) {
    const Digest128 raw_digest = digest.has_value() ? *digest : Xxh3_128(page.raw);
    const PageToEncode to_encode{.raw = page.raw,
                                 .tokens = page.tokens,
                                 .first_position = page.first_position,
                                 .key = page.key,
                                 .raw_digest = raw_digest,
                                 .raw_owner = owner};
    KVSTOW_ASSIGN_OR_RETURN(const EncodedPage coded,
                            coder ? coder(to_encode) : space.codec->Encode(to_encode));
    const std::vector<std::optional<SharedBytes>> bodies(coded.segments.begin(),
                                                         coded.segments.end());
    out.parts = EncodedPayload(coded.header_bytes, bodies);
    out.begin.set_digest(raw_digest.bytes.data(), raw_digest.bytes.size());
  } else {
    out.parts = {SharedBytes(owner, page.raw)};
    if (digest.has_value()) out.begin.set_digest(digest->bytes.data(), digest->bytes.size());
  }
  for (const PageColumn& column : page.columns) {
    v1::PageColumn& info = *out.begin.add_columns();
    info.set_name(column.name);
    info.set_queries(column.queries);
    info.set_context(column.context);
    info.set_bytes(column.scores.size());
    out.parts.emplace_back(owner, std::span(column.scores));
  }
  ToProto(page, out.begin);
  out.begin.set_payload_bytes(TotalBytes(out.parts));
  return out;
}

std::string ParentKeyOf(std::span<const PagePut> pages, size_t i) {
  if (i == 0) return "";
  const PagePut& before = pages[i - 1];
  return before.first_position + before.tokens == pages[i].first_position ? before.key : "";
}

bool GoEncoded(SpacePayload& space, std::span<const PagePut> pages, std::span<const size_t> todo) {
  if (space.codec == nullptr) return false;
  const auto has_columns = [&](size_t page) { return !pages[page].columns.empty(); };
  if (space.reads_columns && std::ranges::any_of(todo, has_columns)) return false;
  return space.put.EncodedNext();
}

}  // namespace kvstow
