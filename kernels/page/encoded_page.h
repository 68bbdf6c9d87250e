// The encoded page: a header that describes itself, and the segments that it lists. docs/FORMAT.md
// gives every byte.
//
// A *segment* is one *level* (0 = base, 1.. = refinements) of one *token class* (0 = protected) of
// a run of layers. It is the unit of placement, transfer and eviction. Segments stand in the order
// in which a store should keep them. A store drops segments from the end of the list, and the rest
// decodes. All levels 0 stand before all levels 1, and so on.
//
// The header ends in a digest over itself. It holds a digest of every segment and one of the raw
// page. So a header and the segments that match it are whole, whoever stored them. The key in the
// header ties them to a name.
//
// Values; thread-safe. Parsing never allocates from an unchecked length. It fails with DATA_LOSS,
// which says what is wrong, and with FAILED_PRECONDITION for an unknown version.
#ifndef KVSTOW_KERNELS_PAGE_ENCODED_PAGE_H_
#define KVSTOW_KERNELS_PAGE_ENCODED_PAGE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "kernels/page/page.h"

namespace kvstow {

inline constexpr uint16_t kPageFormatVersion = 1;
inline constexpr size_t kMaxSegments = 4096;
inline constexpr uint8_t kMaxLevels = 16;
inline constexpr uint8_t kMaxTokenClasses = 16;
inline constexpr size_t kMaxPageHeaderBytes = 256 * 1024;

struct SegmentInfo {
  uint16_t first_layer = 0;
  uint16_t layer_count = 0;
  uint8_t token_class = 0;
  uint8_t level = 0;
  uint32_t bytes = 0;
  // The squared error that this segment removes, given the segments before it. It is relative to
  // the energy of the slab, and summed over tokens and slabs: a page of t tokens and s slabs begins
  // with an error of t * s. Storage weighs gain against bytes. Gain does not weigh tokens by
  // attention, except that `joint` measures it on coefficients over their token's step factor.
  float gain = 0;
  uint64_t digest = 0;  // Xxh3 of the segment's bytes
  bool operator==(const SegmentInfo&) const = default;

  // Returns the layers of this segment that are wanted; a count of 0 = none.
  LayerRange Overlap(LayerRange wanted) const {
    const uint32_t from = std::max<uint32_t>(first_layer, wanted.first);
    const uint32_t to =
        std::min<uint32_t>(first_layer + uint32_t{layer_count}, wanted.first + wanted.count);
    return {from, to > from ? to - from : 0};
  }
};

struct PageHeader {
  std::string key;         // key of the page, <= 64 bytes; "" outside a store
  std::string pipeline;    // Recipe::pipeline(); `raw` when `fell_back`
  bool exact = false;      // the page decodes to the very bytes that were put
  bool fell_back = false;  // a lossy recipe met NaN, Inf or too large a value; kept exactly
  // Geometry: the part of the KvSpec that decoding needs.
  uint32_t layers = 0, kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  DType dtype = DType::kF16;
  RopeSpec rope;
  OtherRope other_rope;
  uint32_t tokens = 0;
  uint64_t first_position = 0;  // position of the page's first token in its sequence
  Digest128 raw_digest;         // digest of the raw page
  // SHA-256, cut to 16 bytes, of the calibration blob that decoding needs; all zero = none.
  std::array<uint8_t, 16> calibration{};
  // The class of each token, below 16 (empty = all tokens are class 0).
  std::vector<uint8_t> token_classes;
  // Which token each is, below kMaxVocabulary or kUnknownToken, where the calibration foretells K
  // and V of tokens (calibration/vocabulary.h). Empty = none is known.
  std::vector<TokenId> token_ids;
  std::vector<SegmentInfo> segments;
  bool operator==(const PageHeader&) const = default;

  // Returns the geometry as a KvSpec with page_tokens = tokens and no names.
  KvSpec Geometry() const;
};

// INVALID_ARGUMENT says what contradicts itself: the geometry, a length, the token classes or the
// segments. Each class that a token has covers every layer once at level 0. A refinement has a base
// of the same layers.
absl::Status Validate(const PageHeader& header);

// Returns whether this page has the geometry of `spec` and no more tokens than its pages.
bool SameGeometry(const PageHeader& header, const KvSpec& spec);

// Returns the bytes of a header. The header must be valid.
std::string SerializePageHeader(const PageHeader& header);
// Returns a valid header, which serializes to the very bytes that were parsed.
absl::StatusOr<PageHeader> ParsePageHeader(std::span<const uint8_t> bytes);

// A page as the codec makes it: header bytes, and the body of each segment that header.segments
// lists.
struct EncodedPage {
  PageHeader header;
  SharedBytes header_bytes;
  std::vector<SharedBytes> segments;

  // Returns the number of bytes that a tier holds for the page.
  uint64_t StoredBytes() const;
};

// Returns the number of levels. The header must be valid.
uint32_t LevelsOf(const PageHeader& header);

// Returns how many leading segments hold the levels below `max_levels` (0 = all levels).
size_t SegmentsForLevels(const PageHeader& header, uint32_t max_levels);

// Checks every body against the header's digest. DATA_LOSS names the first body that fails;
// INVALID_ARGUMENT when there are more bodies than the header lists.
absl::Status VerifySegments(const PageHeader& header, std::span<const SharedBytes> segments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_ENCODED_PAGE_H_
