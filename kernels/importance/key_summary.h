// What the keys of a page span: the least and the largest value of every channel of every head.
// A worker that fetches only pages which its query may look at bounds a page's logits by it,
// without the page: Quest (arXiv 2406.10774), stage 2 of RocketKV (2502.14051), FreeKV
// (2505.13109).
//
// Keys are as the page stores them, with their rotary positions. Values and free functions;
// thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_KEY_SUMMARY_H_
#define KVSTOW_KERNELS_IMPORTANCE_KEY_SUMMARY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/page.h"

namespace kvstow {

struct KeySummary {
  uint32_t layers = 0, heads = 0, dim = 0;
  std::vector<float> least, largest;  // [layers, heads, dim]
};

// Of a raw page, as page.h lays it out. INVALID_ARGUMENT for FP8 and for bytes that are no page of
// so many tokens, OUT_OF_RANGE for one with NaN or Inf.
absl::StatusOr<KeySummary> SummarizeKeys(const KvSpec& spec, std::span<const uint8_t> raw,
                                         uint32_t tokens);

// No key of the page has a larger product with `query` ([dim], as rotated as the keys).
double LargestLogit(const KeySummary& summary, uint32_t layer, uint32_t head,
                    std::span<const float> query);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_KEY_SUMMARY_H_
