// A raw page on its way into a codec, and the facts that the caller knows of it.
#ifndef KVSTOW_KERNELS_PAGE_PAGE_TO_ENCODE_H_
#define KVSTOW_KERNELS_PAGE_PAGE_TO_ENCODE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "kernels/page/attention.h"
#include "kernels/page/page.h"

namespace kvstow {

struct PageToEncode {
  std::span<const uint8_t> raw;  // as page.h lays it out; PageBytes(spec, tokens) bytes
  uint32_t tokens = 0;           // 1..spec.page_tokens
  uint64_t first_position = 0;
  absl::string_view key;  // <= 64 bytes, goes into the header
  // Xxh3_128 of `raw`, when the caller has it already. It saves a pass over the page.
  std::optional<Digest128> raw_digest = {};
  // Xxh3 of each run of ExactRunBytes, when the caller has them. They save another pass. Else
  // empty.
  std::span<const uint64_t> run_digests = {};
  // Keeps `raw` alive, so that bodies of recipes that keep the very bytes reference it. When this
  // is null, they are copies.
  std::shared_ptr<const void> raw_owner = nullptr;
  // The input of importance policies (importance/importance.h). Null or empty = not known.
  const AttentionColumns* columns = nullptr;
  const QueryStatistics* queries = nullptr;
  std::span<const uint8_t> protected_tokens = {};
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_PAGE_TO_ENCODE_H_
