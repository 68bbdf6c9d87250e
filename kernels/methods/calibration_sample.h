// A fit that needs only a sample of token vectors: one pass, bounded memory.
//
// It keeps the whole vector of every 2^k-th token beyond the first tokens of a text (kFirstTokens),
// [K before RoPE of all layers, V of all layers]. Whenever there are too many, every other one goes
// and k grows. So the sample depends only on the pages and their order, and is spread over all of
// them.
//
// Memory: kSampleBytes, or 1,024 vectors when those are more. Not thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_CALIBRATION_SAMPLE_H_
#define KVSTOW_KERNELS_METHODS_CALIBRATION_SAMPLE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/vector_run_codec.h"

namespace kvstow {

class TokenSample {
 public:
  static constexpr size_t kSampleBytes = size_t{256} << 20;

  explicit TokenSample(size_t width, size_t max_tokens = 0);  // 0 = as many as kSampleBytes hold

  // `x` is [count, width].
  void Add(const float* x, size_t count);
  size_t width() const { return width_; }
  size_t tokens() const { return rows_.size() / width_; }
  const float* row(size_t i) const { return rows_.data() + i * width_; }
  // Columns [first, first + count) of all tokens, row by row.
  std::vector<float> Columns(size_t first, size_t count) const;

 private:
  const size_t width_, max_tokens_;
  uint64_t seen_ = 0, every_ = 1;
  std::vector<float> rows_;
};

// Makes the body of the section from the sample.
using FitSection = std::function<absl::StatusOr<std::string>(const TokenSample&)>;

// Makes a fit of one section for `layers_per_run`. Errors are CheckFit's.
absl::StatusOr<std::unique_ptr<CalibrationFit>> MakeSampledFit(const KvSpec& spec,
                                                               const ModelStats& stats,
                                                               uint32_t layers_per_run,
                                                               std::string section, FitSection fit);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_CALIBRATION_SAMPLE_H_
