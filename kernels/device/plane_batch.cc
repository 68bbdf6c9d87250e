#include "kernels/device/plane_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kernels/device/joint_memory.h"

namespace kvstow::gpu {
namespace {

// Appends a list, and returns where it begins; kNotThere for an empty one.
template <typename T>
uint32_t Append(std::span<const T> list, std::vector<T>& to) {
  if (list.empty()) return kNotThere;
  const auto at = static_cast<uint32_t>(to.size());
  to.insert(to.end(), list.begin(), list.end());
  return at;
}

}  // namespace

absl::Status PlaneBatch::Add(const PlaneJob& page, uint32_t tokens, uint32_t tokens_per_stream,
                             const Lists& lists, std::span<const std::span<const uint8_t>> planes) {
  const size_t streams = (size_t{tokens} + tokens_per_stream - 1) / tokens_per_stream;
  const size_t first_job = jobs_.size();
  const uint32_t rows_at = Append(lists.rows, rows_), tilts_at = Append(lists.tilts, tilts_);
  const uint32_t factors_at = Append(lists.factors, factors_);
  for (size_t s = 0; s < streams; ++s) {
    PlaneJob job = page;
    const auto first = static_cast<uint32_t>(s * tokens_per_stream);
    job.tokens = std::min(tokens_per_stream, tokens - first);
    job.rows_at = rows_at, job.tilts_at = tilts_at;
    if (factors_at != kNotThere) job.factors_at = factors_at + first;
    job.coefficients += size_t{first} * job.stride;
    jobs_.push_back(job);
  }
  for (size_t level = 0; level < planes.size(); ++level) {
    KVSTOW_ASSIGN_OR_RETURN(const auto of_level, SplitStreams(planes[level], streams));
    for (size_t s = 0; s < streams; ++s) {
      PlaneJob& job = jobs_[first_job + s];
      job.words_at[level] = static_cast<uint32_t>(words_.size() / 2);
      job.words[level] = static_cast<uint32_t>(of_level[s].size() / 2);
      words_.insert(words_.end(), of_level[s].begin(), of_level[s].end());
    }
  }
  return absl::OkStatus();
}

std::span<uint8_t> PlaneBatch::AddBeside(size_t bytes) {
  beside_.resize(beside_.size() + bytes);
  return std::span(beside_).last(bytes);
}

absl::StatusOr<PlaneBatch::Sent> PlaneBatch::Send(Device& device) const {
  Sent sent;
  Places places;
  const auto take = [&](const auto& list) { return places.Take(list.size() * sizeof(list[0])); };
  sent.jobs = take(jobs_), sent.rows = take(rows_), sent.tilts = take(tilts_);
  sent.factors = take(factors_), sent.words = take(words_), sent.beside = take(beside_);
  ByteBlock block(places.size());
  const auto put = [&](const auto& list, size_t at) {
    if (!list.empty()) std::memcpy(block.data() + at, list.data(), list.size() * sizeof(list[0]));
  };
  put(jobs_, sent.jobs), put(rows_, sent.rows), put(tilts_, sent.tilts);
  put(factors_, sent.factors), put(words_, sent.words), put(beside_, sent.beside);
  KVSTOW_ASSIGN_OR_RETURN(sent.buffer, device.Store(std::move(block).Share()));
  return sent;
}

void PlaneBatch::Sent::Place(const uint8_t* at, PlaneDecodeLaunch& launch) const {
  launch.jobs = reinterpret_cast<const PlaneJob*>(at + jobs);
  launch.rows = reinterpret_cast<const int16_t*>(at + rows);
  launch.tilts = reinterpret_cast<const int8_t*>(at + tilts);
  launch.factors = reinterpret_cast<const float*>(at + factors);
  launch.words = reinterpret_cast<const uint16_t*>(at + words);
}

}  // namespace kvstow::gpu
