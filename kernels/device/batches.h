// Divides the pages of a call into launches.
//
// Free functions; thread-safe.
#ifndef KVSTOW_KERNELS_DEVICE_BATCHES_H_
#define KVSTOW_KERNELS_DEVICE_BATCHES_H_

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/device/device_codec.h"
#include "kernels/device/device_scorer.h"
#include "kernels/device/slab_layout.h"

namespace kvstow::gpu {

// The places in the call of one launch's pages, which have one number of tokens and of levels.
using Batch = std::vector<size_t>;

inline uint32_t LevelsOf(const EncodeJob&) { return 0; }
inline uint32_t LevelsOf(const DecodeJob& page) { return page.levels; }
inline uint32_t LevelsOf(const ScoreJob&) { return 0; }

template <typename Job>
std::vector<Batch> BatchesOf(std::span<const Job> pages) {
  std::vector<Batch> full;
  std::map<std::pair<uint32_t, uint32_t>, Batch> open;
  for (size_t i = 0; i < pages.size(); ++i) {
    Batch& batch = open[{pages[i].tokens, LevelsOf(pages[i])}];
    batch.push_back(i);
    if (batch.size() == kPagesALaunch) full.push_back(std::exchange(batch, {}));
  }
  for (auto& [key, batch] : open) {
    if (!batch.empty()) full.push_back(std::move(batch));
  }
  return full;
}

// Calls f(constant) with the quantizer as std::integral_constant<Kind, kind>.
template <typename F>
auto WithKind(Kind kind, F f) {
  switch (kind) {
    case Kind::kAffine:
      return f(std::integral_constant<Kind, Kind::kAffine>());
    case Kind::kCodebook:
      return f(std::integral_constant<Kind, Kind::kCodebook>());
    case Kind::kLevels:
      return f(std::integral_constant<Kind, Kind::kLevels>());
    case Kind::kMinifloat:
      break;
  }
  return f(std::integral_constant<Kind, Kind::kMinifloat>());
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_BATCHES_H_
