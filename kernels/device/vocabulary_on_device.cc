#include "kernels/device/vocabulary_on_device.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/device/joint_memory.h"
#include "kernels/transform/transpose.h"

namespace kvstow {
namespace {

using gpu::JointLaunch;
using gpu::TokenLaunch;

// A matrix [rows, columns], turned.
std::vector<float> Turned(std::span<const float> m, size_t rows) {
  const size_t columns = m.size() / rows;
  std::vector<float> out(m.size());
  Transpose(m.data(), rows, columns, columns, out.data(), rows);
  return out;
}

}  // namespace

absl::Status VocabularyOnDevice::Open(const JointCoder& coder) {
  const VocabularyTables* const tables = VocabularyOf(coder.calibration());
  if (tables == nullptr) return absl::OkStatus();
  const Vocabulary& vocabulary = *tables->vocabulary;
  spec_ = coder.spec();
  shape_.vocabulary = vocabulary.tokens(), shape_.features = vocabulary.features();
  shape_.signature = vocabulary.signature(), shape_.most_distance = vocabulary.most_distance();
  shape_.stride = gpu::PaddedWidth(vocabulary.width());
  shape_.values = static_cast<uint32_t>(SlabValues(spec_, Part::kV, 1));
  shape_.dtype = spec_.dtype;
  gpu::Parcel parcel;
  const size_t projection_at =
      parcel.Put<float>(Turned(vocabulary.projection(), vocabulary.signature()));
  const size_t signatures_at =
      parcel.Put<float>(Turned(vocabulary.signatures(), vocabulary.tokens()));
  const size_t codes_at = parcel.Put(vocabulary.codes());
  for (const VocabularyRun& run : tables->runs) {
    const auto means = gpu::Bf16Rows(run.means, vocabulary.width(), run.means.columns());
    OfRun& there = runs_.emplace_back();
    there.means = parcel.Put<uint16_t>(means);
    there.importance = parcel.Put<float>(run.importance);
    there.felt = !run.importance.empty();
  }
  KVSTOW_ASSIGN_OR_RETURN(held_, device_.Store(std::move(parcel).Take()));
  const uint8_t* const base = engine_.AddressOf(*held_);
  shape_.projection = reinterpret_cast<const float*>(base + projection_at);
  shape_.signatures = reinterpret_cast<const float*>(base + signatures_at);
  shape_.codes = reinterpret_cast<const int8_t*>(base + codes_at);
  return absl::OkStatus();
}

TokenLaunch VocabularyOnDevice::LaunchOf(uint32_t pages, uint32_t tokens, uint32_t first) const {
  TokenLaunch launch = shape_;
  launch.pages = pages, launch.tokens = tokens, launch.first = first;
  launch.v_at = SlabOffset(spec_, 0, Part::kV, tokens);
  return launch;
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> VocabularyOnDevice::GiveRows(
    TokenLaunch& launch) const {
  const size_t values = size_t{launch.pages} * launch.coded() * launch.stride;
  KVSTOW_ASSIGN_OR_RETURN(auto rows, device_.Allocate(values * sizeof(uint16_t) + 16));
  launch.rows = reinterpret_cast<uint16_t*>(engine_.AddressOf(*rows));
  return rows;
}

void VocabularyOnDevice::Place(size_t r, JointLaunch& launch) const {
  const uint8_t* const base = engine_.AddressOf(*held_);
  launch.token_width = shape_.features + 1;
  launch.token_means = reinterpret_cast<const uint16_t*>(base + runs_[r].means);
  if (runs_[r].felt)
    launch.token_weights = reinterpret_cast<const float*>(base + runs_[r].importance);
}

}  // namespace kvstow
