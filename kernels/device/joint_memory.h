// Memory of calibrated pages on the GPU, as the host fills and reads it: matrices, and the results
// of a launch.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_MEMORY_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_MEMORY_H_

#include <vector>

#include "kernels/device/joint_layout.h"
#include "kernels/methods/joint_coder.h"
#include "kernels/transform/dense_product.h"

namespace kvstow::gpu {

// The leading rows and columns of a matrix as bf16, each row padded with zeros.
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

// The results of a launch for the host, in one buffer.
struct JointAnswer {
  size_t head = 0, q = 0, sample = 0, energies = 0, classes = 0, refused = 0, bytes = 0;

  JointAnswer(const JointLaunch& launch, size_t head_bytes);
  // Has the launch write to a buffer at `at`.
  void Place(uint8_t* at, JointLaunch& launch) const;
};

// Page `page` of it; `bytes` is the buffer in host memory.
QuantizedRun QuantizedOf(const JointLaunch& launch, const JointAnswer& answer, const uint8_t* bytes,
                         uint32_t page);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_MEMORY_H_
