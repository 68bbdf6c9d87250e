// The chance that an item is used again, learned from the uses that were seen.
//
// Items are told apart by class (what kind of item: see value_policy.cc) and by age (how much was
// used since its last use), in buckets of half an octave. For each of both it counts how many items
// came to be so old and how many of those were used before they grew older: the hazard of a use.
// What an item of that class and age is worth keeping for is the best rate of uses that any holding
// time T gives,
//
//   rate = max over T of  P(used within T) / E[min(T, time until the use)]
//
// an index in Gittins' sense ("Bandit Processes and Dynamic Allocation Indices", 1979), and what
// LHD calls hit density (Beckmann et al., NSDI'18). It may grow with age: a new prompt is worth
// less than one that is about as old as prompts are when their next turn comes.
//
// Counts are halved about every eleven capacities of use, so that a workload that shifts is learned
// anew. A class of which little was seen is taken for the average one. Not thread-safe.
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

  // Ages are told in bytes used; those below `unit` are one.
  ReuseEstimator(size_t classes, uint64_t unit);

  size_t AgeBucket(uint64_t age) const;
  uint64_t StartOf(size_t bucket) const { return starts_[bucket]; }

  // An item of class `c` came into a bucket, or was used while in it.
  void CountEntered(size_t c, size_t age) { At(c, age).entered += 1; }
  void CountUsed(size_t c, size_t age) { At(c, age).used += 1; }

  // Computes the rates from the counts, and lets these fade.
  void Estimate();
  // Uses for each byte of use that passes, as of the last Estimate().
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
