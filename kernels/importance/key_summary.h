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
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/importance/budget.h"
#include "kernels/page/page.h"

namespace kvstow {

struct KeySummary {
  uint32_t layers = 0, heads = 0, dim = 0;
  std::vector<float> least, largest;  // [layers, heads, dim]
};

// Of a raw page, as page.h lays it out; of the tokens that `kept` has, where it is not null: it has
// the page's layers, tokens and heads. A head without any spans nothing: least +Inf, largest -Inf.
// INVALID_ARGUMENT for FP8 and for bytes that are no page of so many tokens, OUT_OF_RANGE for one
// with NaN or Inf.
absl::StatusOr<KeySummary> SummarizeKeys(const KvSpec& spec, std::span<const uint8_t> raw,
                                         uint32_t tokens, const Selection* kept = nullptr);

// As it travels (Payload.SUMMARY in proto/kvstow/v1/types.proto): least, then largest, in F32.
size_t SummaryBytes(const KvSpec& spec, uint32_t layers);
std::string SerializeSummary(const KeySummary& summary);
// INVALID_ARGUMENT for bytes that are no summary of so many layers.
absl::StatusOr<KeySummary> ReadSummary(const KvSpec& spec, uint32_t layers,
                                       std::span<const uint8_t> bytes);

// No key of the page has a larger product with `query` ([dim], as rotated as the keys); -Inf where
// there is no key.
double LargestLogit(const KeySummary& summary, uint32_t layer, uint32_t head,
                    std::span<const float> query);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_KEY_SUMMARY_H_
