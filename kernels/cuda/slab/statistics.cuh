// The statistics of a group that make its scale: its least and most value, its largest magnitude,
// or its squared length.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_STATISTICS_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_STATISTICS_CUH_

#include <cmath>

#include "kernels/cuda/slab/quantize.cuh"

namespace kvstow::gpu {

// Shared memory: 8 doubles for each vector, or two floats for each octet, of a tile's span.
constexpr size_t StatisticsBytes(const SlabPart& part) {
  const size_t lanes = part.span_octets / part.vector.by * kOctet * sizeof(double);
  return std::max(lanes, part.span_octets * 2 * sizeof(float));
}

// The statistics of a tile. Codebooks ask for lanes, the others for octets.
template <Kind kind>
class Statistics {
 public:
  // `shared` is aligned to 16 bytes.
  KVSTOW_GPU Statistics(float* shared, uint32_t octets)
      : lanes_(reinterpret_cast<double*>(shared)), low_(shared), high_(shared + octets) {}

  KVSTOW_GPU void PutOctet(uint32_t o, const float* x) const {
    if (kind == Kind::kCodebook) return;
    float low = x[0], high = kind == Kind::kAffine ? x[0] : std::abs(x[0]);
    for (uint32_t j = 1; j < kOctet; ++j) {
      low = Least(low, x[j]);
      high = Most(high, kind == Kind::kAffine ? x[j] : std::abs(x[j]));
    }
    low_[o] = low;
    high_[o] = high;
  }

  // Lane i % 8 of the squared length of vector i / 8 (SquaredLength in codebook.h): value(c) is
  // that of its channel c + i % 8.
  template <typename Value>
  KVSTOW_GPU void PutLane(uint32_t i, uint32_t dim, Value value) const {
    double sum = 0;
    for (uint32_t c = 0; c < dim; c += kOctet) {
      const double x = value(c);
      sum += x * x;
    }
    lanes_[i] = sum;
  }

  // Returns those of the group that begins with octet `begin`, or of the whole `vector`.
  KVSTOW_GPU Halves HalvesOf(uint32_t vector, uint32_t begin, uint32_t octets,
                             uint32_t bits) const {
    if (kind == Kind::kCodebook) {
      double sum = 0;
      for (uint32_t j = 0; j < kOctet; ++j) sum += lanes_[vector * kOctet + j];
      return {FloatToHalf(static_cast<float>(std::sqrt(sum))), 0};
    }
    float low = low_[begin], high = high_[begin];
    for (uint32_t o = begin + 1; o < begin + octets; ++o) {
      low = Least(low, low_[o]);
      high = Most(high, high_[o]);
    }
    if (kind == Kind::kAffine) return AffineHalves(low, high, bits);
    return {FloatToHalf(high), 0};
  }

 private:
  double* const lanes_;  // in the same place as the others
  float* const low_;
  float* const high_;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_STATISTICS_CUH_
