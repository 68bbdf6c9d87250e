// The span of a page's keys: the least and the largest value of every channel of every head. A
// worker that fetches only pages which its query may look at uses it to bound a page's logits
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

// Summarizes a raw page, as page.h lays it out. When `kept` is not null, it has the page's layers,
// tokens and heads, and only the tokens that it keeps count. A head without any spans nothing:
// least +Inf, largest -Inf. Fails with INVALID_ARGUMENT for FP8 and for bytes that are no page of
// so many tokens, and with OUT_OF_RANGE for keys with NaN or Inf.
absl::StatusOr<KeySummary> SummarizeKeys(const KvSpec& spec, std::span<const uint8_t> raw,
                                         uint32_t tokens, const Selection* kept = nullptr);

// The summary as it travels (Payload.SUMMARY in proto/kvstow/v1/types.proto): least, then largest,
// in F32.
size_t SummaryBytes(const KvSpec& spec, uint32_t layers);
std::string SerializeSummary(const KeySummary& summary);
// Fails with INVALID_ARGUMENT for bytes that are no summary of so many layers.
absl::StatusOr<KeySummary> ReadSummary(const KvSpec& spec, uint32_t layers,
                                       std::span<const uint8_t> bytes);

// Returns a bound: no key of the page has a larger product with `query` ([dim], rotated as the keys
// are). Returns -Inf where there is no key.
double LargestLogit(const KeySummary& summary, uint32_t layer, uint32_t head,
                    std::span<const float> query);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_KEY_SUMMARY_H_
