// Estimates the chance that an item is used again, from the uses seen so far.
//
// The estimator groups items by class (the kind of item: see value_policy.cc) and by age (the bytes
// used since the item's last use), in buckets of half an octave. For each class and age it counts
// how many items reached that age, and how many of them were used before they grew older: the
// hazard of a use. The value of keeping an item of that class and age is the best rate of uses over
// all holding times T,
//
//   rate = max over T of  P(used within T) / E[min(T, time until the use)]
//
// an index in Gittins' sense ("Bandit Processes and Dynamic Allocation Indices", 1979), which LHD
// calls hit density (Beckmann et al., NSDI'18). The rate may grow with age: a new prompt is worth
// less than one that is about as old as prompts are when their next turn comes.
//
// Counts halve about every eleven capacities of use, so the estimator learns a workload that
// shifts. A class with few observations counts as the average class. Not thread-safe.
#ifndef KVSTOW_STORAGE_POLICIES_REUSE_ESTIMATOR_H_
#define KVSTOW_STORAGE_POLICIES_REUSE_ESTIMATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvstow {

class ReuseEstimator {
 public:
  static constexpr size_t kAges = 20;

  // Ages are in bytes used. Ages below `unit` share one bucket.
  ReuseEstimator(size_t classes, uint64_t unit);

  size_t AgeBucket(uint64_t age) const;
  uint64_t StartOf(size_t bucket) const { return starts_[bucket]; }

  // Counts that an item of class `c` came into a bucket, or was used while in it.
  void CountEntered(size_t c, size_t age) { At(c, age).entered += 1; }
  void CountUsed(size_t c, size_t age) { At(c, age).used += 1; }

  // Computes the rates from the counts, and lets the counts fade.
  void Estimate();
  // Returns the uses for each byte of use that passes, as of the last Estimate().
  double Rate(size_t c, size_t age) const { return rates_[c * kAges + age]; }

 private:
  struct Counts {
    double entered = 0, used = 0;
  };
  Counts& At(size_t c, size_t age) { return counts_[c * kAges + age]; }
  void EstimateClass(size_t c, const std::array<double, kAges>& average);

  std::array<uint64_t, kAges> starts_;
  std::vector<Counts> counts_;
  std::vector<double> rates_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_REUSE_ESTIMATOR_H_
