// Placement: the worth of bytes where they are. This is the part of the store's decision that knows
// segments. An EvictionPolicy chooses the next page.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_PLACEMENT_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_PLACEMENT_H_

#include <cstdint>

namespace kvstow {

// Some of a page's segments, or all of them.
struct PagePart {
  uint64_t bytes = 0;
  double gain = 0;  // the error that they remove: see SegmentFacts
};

// Returns PolicyItem::worth of the part of a page that goes next: the bytes of the raw page that
// one byte of the part saves when the page is used again. The part's share of the page's gain
// counts as that share of the page. So a quarter of the bytes that holds almost all of the gain is
// worth almost four times the page's average byte, and pages of different models and recipes
// compare. `page` is the page as it was put. Without gains every byte is worth the same. The result
// is positive and finite for any gains.
double WorthOf(const PagePart& next, const PagePart& page, uint64_t raw_bytes);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_PLACEMENT_H_
