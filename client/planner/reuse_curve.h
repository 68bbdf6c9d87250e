// Hit rate against size, for every size at once.
//
// One pass over a trace with an LRU stack (storage/trace/lru_stack.h). A hit is a leading block of
// a prompt that is there when the request arrives; the request then touches all its blocks, first
// to last. So a block at distance d is hit by every cache of at least the largest distance from the
// start of the prompt to it: a prefix is worthless with a hole in it. The hit rate is hits over all
// blocks. Every block counts in full, a prompt's last too.
//
// Blocks are counted, not bytes: one curve serves every model and every recipe, as
// bytes = blocks x tokens of a block x stored bytes of a token.
//
// Values and free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_REUSE_CURVE_H_
#define KVSTOW_CLIENT_PLANNER_REUSE_CURVE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "storage/trace/trace_reader.h"

namespace kvstow::planner {

class ReuseCurve {
 public:
  // `hits[d]`: leading blocks that a cache of d blocks hits and one of d - 1 does not.
  ReuseCurve(std::vector<uint64_t> hits, uint64_t references);

  // 0 to 1. An LRU of `blocks` blocks; of all that ever came.
  double HitRate(uint64_t blocks) const;
  double InfiniteHitRate() const { return HitRate(UINT64_MAX); }
  // The least LRU that reaches `rate`, or nothing when none does.
  std::optional<uint64_t> BlocksFor(double rate) const;
  // Beyond so many blocks nothing is gained.
  uint64_t LargestDistance() const { return hits_.empty() ? 0 : hits_.size() - 1; }
  uint64_t references() const { return references_; }

 private:
  std::vector<uint64_t> hits_;  // cumulative, by blocks; ends where it stops growing
  uint64_t references_;
};

// What a plan needs to know of a load.
struct Load {
  uint32_t block_tokens = 0;
  uint64_t requests = 0;
  uint64_t distinct_blocks = 0;
  double span_s = 0;         // first to last arrival; 0 = all at once
  double prompt_tokens = 0;  // mean
  double output_tokens = 0;  // mean
  ReuseCurve curve;
};

Load MeasureLoad(const Trace& trace);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_REUSE_CURVE_H_
