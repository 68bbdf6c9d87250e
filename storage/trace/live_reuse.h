// Estimates the hit rate that a running cache would have with more or less memory, in a few MiB.
//
// SHARDS (Waldspurger, Park, Garthwaite and Ahmad, FAST'15): the stack distances of a sample stand
// for all. The sample is the pages whose hash lies below a threshold; for a sampled fraction R, a
// distance of d means d / R. When there are more than `max_samples`, the threshold is halved.
// References that the sample has too few or too many of count as hits at the smallest distance
// (SHARDS-adj): they belong to the few pages that everybody asks for. Beside it a HyperLogLog
// counts the distinct pages: one minus distinct over references is the hit rate of an infinite
// cache.
//
// A request names the pages of a prompt, first to last, as Lookup gets them. As in the traces, a
// page counts as a hit of a size only when all pages before it are hits too. Distances are in raw
// bytes: a cache of S stored bytes and ratio r is one of S x r raw bytes, so one measurement serves
// every recipe.
//
// Figures cover the last one to two windows, less at the start. Pages that nobody asked for in that
// time leave the sample. The object takes at most about 100 bytes a sample and 64 KiB.
//
// Thread-safe.
#ifndef KVSTOW_STORAGE_TRACE_LIVE_REUSE_H_
#define KVSTOW_STORAGE_TRACE_LIVE_REUSE_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "storage/trace/hyper_log_log.h"
#include "storage/trace/lru_stack.h"

namespace kvstow {

struct LiveReuseOptions {
  uint32_t max_samples = 1 << 16;
  Duration window = std::chrono::hours(6);
};

struct ReusePoint {
  uint64_t raw_bytes = 0;
  double hit_rate = 0;  // of a cache that holds so many, 0 to 1
};

struct ReuseEstimate {
  uint64_t references = 0;
  double distinct_pages = 0;
  double infinite_hit_rate = 0;
  double sampled = 1;             // fraction of the pages
  std::vector<ReusePoint> curve;  // both rising; about 2 % apart in bytes
  double HitRate(uint64_t raw_bytes) const;
};

class LiveReuse {
 public:
  explicit LiveReuse(LiveReuseOptions options = {});

  // `pages` are uniform hashes of space and key. `raw_bytes` are those of each page, above 0.
  void Record(std::span<const uint64_t> pages, uint32_t raw_bytes, Time now);
  ReuseEstimate Estimate() const;
  uint64_t memory_bytes() const;

 private:
  static constexpr int kPerOctave = 32;
  static constexpr size_t kBuckets = 48 * kPerOctave;  // from 4 KiB to beyond 2^59 bytes

  // Counts of one window.
  struct Window {
    uint64_t references = 0;
    double cold = 0;
    std::vector<double> hits = std::vector<double>(kBuckets);  // by distance
    HyperLogLog pages;
  };

  static size_t BucketOf(double raw_bytes);
  void StartWindows(Time now) KVSTOW_REQUIRES(mu_);
  void TouchSample(uint64_t page, uint32_t raw_bytes) KVSTOW_REQUIRES(mu_);
  void HalveTheSample() KVSTOW_REQUIRES(mu_);
  void DropSample(uint32_t item) KVSTOW_REQUIRES(mu_);

  const LiveReuseOptions options_;
  mutable Mutex mu_;
  std::array<Window, 2> windows_ KVSTOW_GUARDED_BY(mu_);  // now, and before
  uint32_t window_number_ KVSTOW_GUARDED_BY(mu_) = 0;
  Time window_start_ KVSTOW_GUARDED_BY(mu_);
  bool started_ KVSTOW_GUARDED_BY(mu_) = false;
  int halvings_ KVSTOW_GUARDED_BY(mu_) = 0;  // the sample is the pages with so many zero bits
  LruStack stack_ KVSTOW_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, uint32_t> items_ KVSTOW_GUARDED_BY(mu_);  // of sampled pages
  struct Sample {
    uint64_t page = 0;
    uint32_t window = 0;  // of the last touch
  };
  std::vector<Sample> samples_ KVSTOW_GUARDED_BY(mu_);  // by item
  std::vector<uint32_t> free_ KVSTOW_GUARDED_BY(mu_);   // items without a page
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_LIVE_REUSE_H_
