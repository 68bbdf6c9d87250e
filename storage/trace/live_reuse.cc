#include "storage/trace/live_reuse.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvstow {
namespace {

constexpr double kSmallest = 4096;  // bytes; the first bucket ends here

// HyperLogLog takes the top bits of a hash, sampling must not look at the same.
bool IsSampled(uint64_t page, int halvings) {
  return halvings == 0 || (page << 32) >> (64 - halvings) == 0;
}

}  // namespace

LiveReuse::LiveReuse(LiveReuseOptions options) : options_(options) {}

size_t LiveReuse::BucketOf(double raw_bytes) {
  const double octaves = std::log2(std::max(raw_bytes, kSmallest) / kSmallest);
  return std::min(kBuckets - 1, static_cast<size_t>(std::ceil(octaves * kPerOctave)));
}

void LiveReuse::Record(std::span<const uint64_t> pages, uint32_t raw_bytes, Time now) {
  MutexLock lock(mu_);
  StartWindows(now);
  Window& window = windows_[0];
  const double scale = std::ldexp(1.0, halvings_);
  window.references += pages.size();
  std::optional<uint32_t> deepest;  // of the pages so far, whose distance is what the prompt needs
  size_t bucket = 0;
  bool leading = true;
  for (const uint64_t page : pages) {
    window.pages.Add(page);
    if (!IsSampled(page, halvings_)) continue;
    const auto item = items_.find(page);
    leading = leading && item != items_.end();
    if (!leading) {
      window.cold += scale;
      continue;
    }
    if (!deepest.has_value() || stack_.TouchedBefore(item->second, *deepest)) {
      deepest = item->second;
      bucket = BucketOf(static_cast<double>(stack_.Distance(*deepest)) * scale);
    }
    window.hits[bucket] += scale;
  }
  for (const uint64_t page : pages) {
    if (IsSampled(page, halvings_)) TouchSample(page, raw_bytes);
  }
  while (items_.size() > options_.max_samples && halvings_ < 31) HalveTheSample();
}

void LiveReuse::TouchSample(uint64_t page, uint32_t raw_bytes) {
  const auto [it, added] = items_.try_emplace(page, 0);
  if (added) {
    if (free_.empty()) {
      it->second = static_cast<uint32_t>(samples_.size());
      samples_.emplace_back();
    } else {
      it->second = free_.back();
      free_.pop_back();
    }
  }
  samples_[it->second] = {page, window_number_};
  stack_.Touch(it->second, raw_bytes);
}

void LiveReuse::DropSample(uint32_t item) {
  stack_.Remove(item);
  items_.erase(samples_[item].page);
  free_.push_back(item);
}

void LiveReuse::HalveTheSample() {
  ++halvings_;
  for (uint32_t item = 0; item < samples_.size(); ++item) {
    if (stack_.Contains(item) && !IsSampled(samples_[item].page, halvings_)) DropSample(item);
  }
}

// Begins the windows that have become due; what was counted before the last two is forgotten.
void LiveReuse::StartWindows(Time now) {
  if (!started_) window_start_ = now;
  started_ = true;
  const Duration passed = now - window_start_;
  if (passed < options_.window) return;
  windows_[1] = passed < 2 * options_.window ? std::move(windows_[0]) : Window();
  windows_[0] = Window();
  window_number_ += passed < 2 * options_.window ? 1 : 2;
  window_start_ += passed / options_.window * options_.window;
  for (uint32_t item = 0; item < samples_.size(); ++item) {
    if (stack_.Contains(item) && samples_[item].window + 1 < window_number_) DropSample(item);
  }
}

ReuseEstimate LiveReuse::Estimate() const {
  MutexLock lock(mu_);
  const Window &now = windows_[0], &before = windows_[1];
  ReuseEstimate out;
  out.references = now.references + before.references;
  out.sampled = std::ldexp(1.0, -halvings_);
  if (out.references == 0) return out;
  const auto references = static_cast<double>(out.references);
  out.distinct_pages = std::min(references, now.pages.CountWith(before.pages));
  out.infinite_hit_rate = 1 - out.distinct_pages / references;
  double counted = now.cold + before.cold;
  for (size_t b = 0; b < kBuckets; ++b) counted += now.hits[b] + before.hits[b];
  double hits = references - counted;  // the adjustment
  for (size_t b = 0; b < kBuckets; ++b) {
    const double more = now.hits[b] + before.hits[b];
    if (more == 0) continue;
    hits += more;
    out.curve.push_back({.raw_bytes = static_cast<uint64_t>(
                             kSmallest * std::exp2(static_cast<double>(b) / kPerOctave)),
                         .hit_rate = std::clamp(hits / references, 0.0, 1.0)});
  }
  return out;
}

uint64_t LiveReuse::memory_bytes() const {
  MutexLock lock(mu_);
  uint64_t bytes = stack_.memory_bytes() + samples_.capacity() * sizeof(Sample) +
                   free_.capacity() * sizeof(uint32_t);
  bytes += items_.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 1);
  for (const Window& w : windows_) {
    bytes += w.hits.capacity() * sizeof(double) + w.pages.memory_bytes();
  }
  return bytes;
}

double ReuseEstimate::HitRate(uint64_t raw_bytes) const {
  const auto after = std::upper_bound(
      curve.begin(), curve.end(), raw_bytes,
      [](uint64_t bytes, const ReusePoint& point) { return bytes < point.raw_bytes; });
  return after == curve.begin() ? 0 : std::prev(after)->hit_rate;
}

}  // namespace kvstow
