// An importance policy that works within a device's memory: it gives raw pages that lie there
// scores and selections, many pages in one call. DeviceKernels::NewScorer makes it. The host's is
// the CPU's policy, and the reference: every other gives the same scores, bit for bit, and keeps
// the same tokens.
//
// Devices have the score ops position, random, key_norm, value_norm, key_diversity, lag, column,
// head_table, pool, chunk, norm, heads, decay, shift, plus and times, then protect and a budget of
// any scope, split and profile but lazy. Columns are host memory and are copied to the device.
//
// Thread-safe, and stateless except for the device's streams: calls from several threads overlap. A
// call returns when its pages are done. It borrows the buffers, which are the device's own, and the
// columns. It uses nothing after it has returned. The device outlives its scorers.
//
// Errors: INVALID_ARGUMENT and FAILED_PRECONDITION name a page that does not fit or lacks a column,
// before any work. RESOURCE_EXHAUSTED when the device is short of memory, and INTERNAL with the
// driver's text when it failed. A page without an answer is no error (Score, below).
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_SCORER_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_SCORER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/importance/budget.h"

namespace kvstow {

// Like PageToScore, with the page in the device's memory.
struct ScoreJob {
  uint32_t tokens = 0;                // 1..spec.page_tokens
  const DeviceBuffer* raw = nullptr;  // PageBytes(spec, tokens) bytes or more
  uint64_t first_position = 0;
  const AttentionColumns* columns = nullptr;
  std::span<const uint8_t> protected_tokens = {};  // empty or [tokens]
};

class DeviceScorer {
 public:
  virtual ~DeviceScorer() = default;

  // Returns one answer for each page: the score that the budget uses (the last one), and the tokens
  // that the budget keeps. No answer: the policy read NaN or Inf from the page or its columns, or a
  // score overflowed on a GPU. Leave such a page to the CPU's policy.
  virtual absl::StatusOr<std::vector<std::optional<ScoreMap>>> Scores(
      std::span<const ScoreJob> pages) = 0;
  virtual absl::StatusOr<std::vector<std::optional<Selection>>> Select(
      std::span<const ScoreJob> pages) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_SCORER_H_
