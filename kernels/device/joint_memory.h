// Memory of calibrated pages on the GPU, as the host lays it out and fills it.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_MEMORY_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_MEMORY_H_

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/shared_bytes.h"
#include "kernels/device/device_ropes.h"
#include "kernels/device/joint_layout.h"
#include "kernels/transform/dense_product.h"

namespace kvstow::gpu {

// The leading rows and columns of a matrix as bf16, both padded with zeros to PaddedWidth.
std::vector<uint16_t> Bf16Rows(const PackedMatrix& m, size_t rows, size_t columns);

// Places in one buffer, each aligned to 16.
class Places {
 public:
  size_t Take(size_t bytes) {
    const size_t at = size_;
    size_ += (bytes + 15) / 16 * 16;
    return at;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

// Values that go into one buffer of the device.
class Parcel {
 public:
  // Returns where they will be.
  template <typename T>
  size_t Put(std::span<const T> values) {
    const size_t at = places_.Take(values.size_bytes());
    bytes_.resize(places_.size());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }
  SharedBytes Take() && { return SharedBytes::Take(std::move(bytes_)); }

 private:
  Places places_;
  std::vector<uint8_t> bytes_;
};

// The columns of a run of these layers of the page.
std::vector<JointColumn> ColumnsOf(const KvSpec& spec, LayerRange layers, const DeviceRopes& ropes);

// What integers take in lists of every spread: PlaneEncodeLaunch::costs.
std::vector<float> ListCosts();

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_MEMORY_H_
