#include "client/planner/reuse_curve.h"

#include <algorithm>

#include "storage/trace/lru_stack.h"

namespace kvstow::planner {

ReuseCurve::ReuseCurve(std::vector<uint64_t> hits, uint64_t references)
    : hits_(std::move(hits)), references_(references) {
  while (!hits_.empty() && hits_.back() == 0) hits_.pop_back();
  uint64_t sum = 0;
  for (uint64_t& count : hits_) count = sum += count;
}

double ReuseCurve::HitRate(uint64_t blocks) const {
  if (hits_.empty() || references_ == 0) return 0;
  return static_cast<double>(hits_[std::min<uint64_t>(blocks, hits_.size() - 1)]) /
         static_cast<double>(references_);
}

std::optional<uint64_t> ReuseCurve::BlocksFor(double rate) const {
  const auto reaches = [&](uint64_t hits) {
    return static_cast<double>(hits) >= rate * static_cast<double>(references_);
  };
  const auto it = std::partition_point(hits_.begin(), hits_.end(),
                                       [&](uint64_t hits) { return !reaches(hits); });
  if (it == hits_.end()) return rate <= 0 ? std::optional<uint64_t>(0) : std::nullopt;
  return static_cast<uint64_t>(it - hits_.begin());
}

Load MeasureLoad(const Trace& trace) {
  LruStack stack;
  std::vector<uint64_t> hits(trace.parents.size() + 1);
  double prompt = 0, output = 0;
  for (const TraceRequest& request : trace.requests) {
    uint64_t need = 0;
    uint32_t oldest = 0;  // of the leading blocks so far: it alone can have the largest distance
    for (size_t i = 0; i < request.blocks.size(); ++i) {
      const auto block = static_cast<uint32_t>(request.blocks[i]);
      if (!stack.Contains(block)) break;
      if (i == 0 || stack.TouchedBefore(block, oldest)) {
        oldest = block;
        need = stack.Distance(block);
      }
      ++hits[need];
    }
    for (const uint64_t block : request.blocks) stack.Touch(static_cast<uint32_t>(block), 1);
    prompt += request.input_tokens;
    output += request.output_tokens;
  }
  const double n = std::max<double>(1, static_cast<double>(trace.requests.size()));
  return {.block_tokens = trace.block_tokens,
          .requests = trace.requests.size(),
          .distinct_blocks = trace.parents.size(),
          .span_s = trace.requests.empty()
                        ? 0
                        : trace.requests.back().time_s - trace.requests.front().time_s,
          .prompt_tokens = prompt / n,
          .output_tokens = output / n,
          .curve = ReuseCurve(std::move(hits), trace.references)};
}

}  // namespace kvstow::planner
