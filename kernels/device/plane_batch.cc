#include "kernels/device/plane_batch.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/device/host_threads.h"
#include "kernels/device/joint_memory.h"

namespace kvstow::gpu {

size_t PlaneBatch::Pieces::Add(std::span<const uint8_t> bytes) {
  const size_t at = size_;
  if (!bytes.empty()) pieces_.emplace_back(at, bytes);
  size_ += bytes.size();
  return at;
}

void PlaneBatch::Pieces::CopyTo(uint8_t* to) const {
  OnHostThreads(pieces_.size(), [&](size_t i) {
    const auto& [at, bytes] = pieces_[i];
    std::memcpy(to + at, bytes.data(), bytes.size());
  });
}

// Appends a list, and returns where it begins, in items; kNotThere for an empty one.
template <typename T>
uint32_t PlaneBatch::Append(std::span<const T> list, Pieces& to) {
  if (list.empty()) return kNotThere;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(list.data());
  return static_cast<uint32_t>(to.Add({bytes, list.size_bytes()}) / sizeof(T));
}

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
    KVSTOW_ASSIGN_OR_RETURN(const auto of_level,
                            SplitStreams(planes[level], streams, /*classed=*/true));
    for (size_t s = 0; s < streams; ++s) {
      PlaneJob& job = jobs_[first_job + s];
      job.words_at[level] = static_cast<uint32_t>(words_.Add(of_level[s]) / 2);
      job.words[level] = static_cast<uint32_t>(of_level[s].size() / 2);
    }
  }
  return absl::OkStatus();
}

void PlaneBatch::AddBeside(std::span<const uint8_t> bytes) { beside_.Add(bytes); }

absl::StatusOr<PlaneBatch::Sent> PlaneBatch::Send(Device& device) const {
  Sent sent;
  Places places;
  const size_t job_bytes = jobs_.size() * sizeof(PlaneJob);
  sent.jobs = places.Take(job_bytes);
  sent.rows = places.Take(rows_.size()), sent.tilts = places.Take(tilts_.size());
  sent.factors = places.Take(factors_.size()), sent.words = places.Take(words_.size());
  sent.beside = places.Take(beside_.size());
  ByteBlock block(places.size());
  if (job_bytes > 0) std::memcpy(block.data() + sent.jobs, jobs_.data(), job_bytes);
  rows_.CopyTo(block.data() + sent.rows), tilts_.CopyTo(block.data() + sent.tilts);
  factors_.CopyTo(block.data() + sent.factors), words_.CopyTo(block.data() + sent.words);
  beside_.CopyTo(block.data() + sent.beside);
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
