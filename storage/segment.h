// Storage's view of a page: a name, an opaque header, and segments as bytes with a value.
//
// Storage never looks into a header or a segment: kernels/ made them. Only the counts, sizes, gains
// and digests here reach a placement decision. Values; thread-safe.
#ifndef KVSTOW_STORAGE_SEGMENT_H_
#define KVSTOW_STORAGE_SEGMENT_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "base/shared_bytes.h"

namespace kvstow {

using SpaceId = uint32_t;

// The name of a page. The same key in two spaces names two pages.
struct PageName {
  SpaceId space = 0;
  std::string key;  // 1..64 bytes
  bool operator==(const PageName&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const PageName& n) {
    return H::combine(std::move(h), n.space, n.key);
  }
};

// The number of a page, given at publication and never used again. So bytes of a page that was
// deleted and put again are never taken for the new ones.
using PageNumber = uint64_t;

// A reference to a page that was found before: its place in the index, and the number that shows
// whether it is still that page. Only the store that gave it can use it.
struct PageRef {
  uint64_t item = 0;
  PageNumber number = 0;
  bool operator==(const PageRef&) const = default;
};

struct SegmentId {
  PageNumber page = 0;
  uint16_t index = 0;  // place in the page's list; 0 is dropped last
  bool operator==(const SegmentId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const SegmentId& s) {
    return H::combine(std::move(h), s.page, s.index);
  }
};

struct SegmentFacts {
  uint32_t bytes = 0;
  float gain = 0;       // see SegmentInfo in kernels/page/encoded_page.h
  uint64_t digest = 0;  // Xxh3 of the body; checked at every read (Checks)
};

// Returns the body from a tier when it is the one that was stored; else DATA_LOSS.
absl::StatusOr<SharedBytes> Verified(absl::StatusOr<SharedBytes> body, const SegmentFacts& facts);

// The places of bytes, in the order of cooling.
enum class TierId : uint8_t { kGpu = 0, kHost = 1, kDisk = 2 };
inline constexpr int kTiers = 3;
inline constexpr TierId kAllTiers[] = {TierId::kGpu, TierId::kHost, TierId::kDisk};
using TierBytes = std::array<uint64_t, kTiers>;  // by tier
const char* TierName(TierId tier);               // "gpu", "host", "disk"

// The failure that an acknowledged put survives.
enum class Ack : uint8_t {
  kMemory = 0,   // nothing: the page is in memory
  kProcess = 1,  // kill -9: the operating system has the page
  kDurable = 2,  // power loss: the page is synced to disk
};

// A page on its way into the store.
struct PageToStore {
  PageName name;
  SharedBytes header;           // opaque
  Digest128 raw_digest;         // same digest = same page
  uint64_t raw_bytes = 0;       // of the page before coding, for statistics
  uint64_t first_position = 0;  // of its first token: its depth in a prefix
  uint32_t tokens = 0;
  std::string parent_key;  // of the previous page in its prompt; "" = unknown, or none
  bool whole = false;      // exact pages: never drop a part
  bool hot = false;        // it has a cold form, which it takes before it leaves memory (ColdForm)
  std::vector<SegmentFacts> facts;
  std::vector<SharedBytes> bodies;  // one for each of `facts`
  Ack ack = Ack::kMemory;
};

// A smaller coding of the same content, which replaces a hot page.
struct ColdForm {
  SharedBytes header;
  bool whole = false;
  std::vector<SegmentFacts> facts;
  std::vector<SharedBytes> bodies;  // one for each of `facts`
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_SEGMENT_H_
