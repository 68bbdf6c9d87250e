#include "storage/policies/reuse_estimator.h"

#include <algorithm>
#include <cmath>

namespace kvstow {
namespace {

constexpr double kFade = 0.985;      // of the counts at each estimate
constexpr double kPrior = 20;        // items of the average class that each class begins with
constexpr double kFirstUsed = 0.05;  // of kFirstEntered, before anything was seen
constexpr double kFirstEntered = 1;

}  // namespace

ReuseEstimator::ReuseEstimator(size_t classes, uint64_t unit)
    : counts_(classes * kAges), rates_(classes * kAges) {
  starts_[0] = 0;
  for (size_t b = 1; b < kAges; ++b) {
    const double start = static_cast<double>(unit) * std::exp2(static_cast<double>(b - 1) / 2);
    starts_[b] = std::max<uint64_t>(starts_[b - 1] + 1, static_cast<uint64_t>(start));
  }
  Estimate();
}

size_t ReuseEstimator::AgeBucket(uint64_t age) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), age) -
                             starts_.begin()) -
         1;
}

void ReuseEstimator::Estimate() {
  const size_t classes = counts_.size() / kAges;
  std::array<double, kAges> average;
  for (size_t b = 0; b < kAges; ++b) {
    double used = kFirstUsed, entered = kFirstEntered;
    for (size_t c = 0; c < classes; ++c) {
      used += At(c, b).used;
      entered += At(c, b).entered;
    }
    average[b] = used / entered;
  }
  for (size_t c = 0; c < classes; ++c) EstimateClass(c, average);
  for (Counts& counts : counts_) {
    counts.entered *= kFade;
    counts.used *= kFade;
  }
}

void ReuseEstimator::EstimateClass(size_t c, const std::array<double, kAges>& average) {
  std::array<double, kAges> hazard, width;
  for (size_t b = 0; b < kAges; ++b) {
    const Counts& counts = At(c, b);
    hazard[b] = std::min(1.0, (counts.used + kPrior * average[b]) / (counts.entered + kPrior));
    const uint64_t end = b + 1 < kAges ? starts_[b + 1] : 2 * starts_[b];
    width[b] = static_cast<double>(end - starts_[b]);
  }
  for (size_t b = 0; b < kAges; ++b) {
    double alive = 1, used = 0, held = 0, best = 0;
    for (size_t t = b; t < kAges; ++t) {
      used += alive * hazard[t];
      held += alive * width[t] * (1 - hazard[t] / 2);  // a use comes in the middle of its bucket
      alive *= 1 - hazard[t];
      best = std::max(best, used / held);
    }
    rates_[c * kAges + b] = best;
  }
}

}  // namespace kvstow
