// A calibration and its recipe on a device: what the encoder and the decoder of calibrated pages
// (joint_encoder.h, joint_decoder.h) have in common.
//
// Immutable after Open: thread-safe. Borrows the device.
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_ON_DEVICE_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_ON_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device_ropes.h"
#include "kernels/device/joint_jobs.h"
#include "kernels/device/joint_layout.h"
#include "kernels/device/query_means_on_device.h"
#include "kernels/device/vocabulary_on_device.h"
#include "kernels/methods/joint_coder.h"

namespace kvstow {

// Rows of a launch of the product: what bounds its scratch memory, 6 bytes a value of a vector.
inline constexpr uint32_t kMostRows = 4096;
// Rows whose streams are coded at once. They take 2 bytes a coefficient when they are decoded, and
// 5 when they are encoded.
inline constexpr uint32_t kMostPlaneRows = 16384;

class JointOnDevice {
 public:
  using Buffer = std::shared_ptr<const DeviceBuffer>;
  // Indices of pages of a call that have one length, one number of first tokens and one of levels.
  using Batch = std::span<const size_t>;

  JointOnDevice(Device& device, std::unique_ptr<JointEngine> engine, JointCoder coder)
      : device_(device),
        engine_(std::move(engine)),
        coder_(std::move(coder)),
        query_means_(device_, *engine_),
        vocabulary_(device_, *engine_) {}
  // Sends the calibration to the device.
  absl::Status Open();

  Device& device() const { return device_; }
  JointEngine& engine() const { return *engine_; }
  const JointCoder& coder() const { return coder_; }
  uint32_t levels() const { return coder_.options().levels; }
  size_t run_count() const { return runs_.size(); }
  const CalibratedRun& run(size_t r) const { return coder_.calibration().runs()[r]; }
  // Returns the rows of a run's plane layout, before a page's own tables.
  std::span<const int16_t> rows(size_t r) const { return runs_[r].rows; }
  // What the plane coder looks up; `bits` and `list_costs` are null unless pages adapt.
  struct Tables {
    const gpu::PlaneTable* planes;
    const uint16_t* bits;
    const float* list_costs;
  };
  Tables tables() const {
    return {At<gpu::PlaneTable>(plane_table_), At<uint16_t>(table_bits_), At<float>(list_costs_)};
  }
  const QueryMeansOnDevice& query_means() const { return query_means_; }
  const VocabularyOnDevice& vocabulary() const { return vocabulary_; }

  // Returns how many first tokens the page has.
  template <typename Job>
  uint32_t FirstOf(const Job& page) const {
    return coder_.first_tokens().Count({{0, 1}, page.tokens, page.first_position});
  }
  // Returns the most tokens that a stream of the plane coder has, as the kernels need it.
  uint32_t StreamTokens() const {
    const uint32_t most = std::min(coder_.options().tokens_per_stream, coder_.spec().page_tokens);
    return static_cast<uint32_t>(PlaneStride(most));
  }
  // Returns the raw bytes of first tokens of the run of a launch, as a page of them alone has them.
  size_t HeadBytes(const gpu::JointLaunch& launch) const {
    return launch.first > 0 ? launch.layers * LayerBytes(coder_.spec(), launch.first) : 0;
  }
  // Returns all of a launch of a run but its memory.
  template <typename Job>
  gpu::JointLaunch LaunchOf(std::span<const Job> pages, Batch batch, size_t r,
                            bool encoding) const {
    gpu::JointLaunch launch = ShapeOf(pages[batch[0]].tokens, FirstOf(pages[batch[0]]), r);
    launch.pages = static_cast<uint32_t>(batch.size());
    launch.matrix = At<uint16_t>(encoding ? runs_[r].encode : runs_[r].decode);
    if (vocabulary_.on()) vocabulary_.Place(r, launch);
    for (size_t i = 0; i < batch.size(); ++i) {
      launch.page[i] = engine_->AddressOf(*pages[batch[i]].raw);
      launch.first_position[i] = pages[batch[i]].first_position;
    }
    return launch;
  }
  // Gives the launches, which run one after another, the memory that they share: angles and both
  // sides of the product. Returns what holds it.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> ShareScratch(std::span<gpu::JointLaunch> launches,
                                                             bool narrow) const;

  template <typename T>
  absl::StatusOr<Buffer> Send(const std::vector<T>& values) const {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    return device_.Store(SharedBytes::CopyOf({bytes, values.size() * sizeof(T)}));
  }
  template <typename T>
  T* At(const std::shared_ptr<DeviceBuffer>& buffer, size_t bytes = 0) const {
    return reinterpret_cast<T*>(engine_->AddressOf(*buffer) + bytes);
  }
  template <typename T>
  const T* At(const Buffer& buffer) const {
    return buffer == nullptr ? nullptr : reinterpret_cast<const T*>(engine_->AddressOf(*buffer));
  }

 private:
  struct OfRun {
    Buffer encode, decode, mean, columns, sigma, weights;
    std::vector<int16_t> rows;
  };
  gpu::JointLaunch ShapeOf(uint32_t tokens, uint32_t first, size_t r) const;
  absl::Status OpenTables();

  Device& device_;
  const std::unique_ptr<JointEngine> engine_;
  const JointCoder coder_;
  QueryMeansOnDevice query_means_;
  VocabularyOnDevice vocabulary_;
  gpu::DeviceRopes ropes_;  // no frequencies: K is not turned
  Buffer frequencies_;      // these, or null
  Buffer plane_table_, table_bits_, list_costs_;
  Buffer end_steps_;  // EndLogSteps
  std::vector<OfRun> runs_;
};

// Names a page in an error.
absl::Status OfPage(size_t page, const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_ON_DEVICE_H_
