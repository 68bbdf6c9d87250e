// Hit rate against size, for every size at once.
//
// It takes one pass over a trace with an LRU stack (storage/trace/lru_stack.h). A hit is a leading
// block of a prompt that is there when the request arrives. The request then touches all its
// blocks, first to last. So a cache hits a block when it has at least the largest distance of the
// blocks from the start of the prompt to it: a prefix with a hole in it is worthless. The hit rate
// is hits over all blocks. Every block counts in full, also a prompt's last.
//
// The curve counts blocks, not bytes: one curve serves every model and every recipe, as
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

  // Return the hit rate, 0 to 1, of an LRU of `blocks` blocks, and of one that holds everything.
  double HitRate(uint64_t blocks) const;
  double InfiniteHitRate() const { return HitRate(UINT64_MAX); }
  // Returns the blocks of the least LRU that reaches `rate`, or nothing when none does.
  std::optional<uint64_t> BlocksFor(double rate) const;
  // Returns the number of blocks beyond which more gain nothing.
  uint64_t LargestDistance() const { return hits_.empty() ? 0 : hits_.size() - 1; }
  uint64_t references() const { return references_; }

 private:
  std::vector<uint64_t> hits_;  // cumulative, by blocks; ends where it stops growing
  uint64_t references_;
};

// The facts of a load that a plan needs.
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
