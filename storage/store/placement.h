// Placement: what bytes are worth where they are. The part of the store's decision that knows
// segments; which page goes next is an EvictionPolicy's.
#ifndef KVSTOW_STORAGE_STORE_PLACEMENT_H_
#define KVSTOW_STORAGE_STORE_PLACEMENT_H_

#include <cstdint>

namespace kvstow {

// Some of a page's segments, or all of them.
struct PagePart {
  uint64_t bytes = 0;
  double gain = 0;  // the error that they remove: see SegmentFacts
};

// PolicyItem::worth of the part of a page that goes next: what a byte of it saves when the page is
// used again, in bytes of the raw page. The part's share of the page's gain counts as that share of
// the page, so a quarter of the bytes that holds almost all of the gain is worth almost four times
// what the page's bytes are worth on average, and pages of different models and recipes compare.
// `page` is as the page was put; without gains every byte is worth the same. Positive and finite,
// whatever the gains are.
double WorthOf(const PagePart& next, const PagePart& page, uint64_t raw_bytes);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_PLACEMENT_H_
