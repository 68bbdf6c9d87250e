// A raw page on its way into a codec, and what is known of it.
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
  // Xxh3_128 of `raw` where the caller has it already: saves a pass over the page.
  std::optional<Digest128> raw_digest = {};
  // Xxh3 of each run of KeptRunBytes, where the caller has them: saves another. Else empty.
  std::span<const uint64_t> run_digests = {};
  // Keeps `raw` alive: bodies of recipes that keep the very bytes then reference it. Null: they are
  // copied.
  std::shared_ptr<const void> raw_owner = nullptr;
  // What importance policies read (importance/importance.h); null or empty: nothing is known.
  const AttentionColumns* columns = nullptr;
  const QueryStatistics* queries = nullptr;
  std::span<const uint8_t> protected_tokens = {};
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_PAGE_TO_ENCODE_H_
