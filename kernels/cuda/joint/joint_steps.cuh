// The steps of calibrated pages around the product: raw values to vectors, coefficients to
// magnitudes, vectors to raw values, and first tokens as they are.
//
// A step is a struct of plain numbers: Blocks() thread blocks a page, SharedBytes() of shared
// memory each; Code() is the work of one of them, in phases as tile.cuh has them. EachItem
// (each_item.cuh) makes one of what is done value by value. Arithmetic is that of joint_vectors.cc,
// token_importance.cc and dead_zone.h but for the order of sums and the logarithms of the platform:
// decisions that those make are written into the page.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_JOINT_STEPS_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_JOINT_STEPS_CUH_

#include <cmath>

#include "kernels/calibration/token_importance.h"
#include "kernels/cuda/each_item.cuh"
#include "kernels/device/joint_layout.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"
#include "kernels/methods/joint_sampling.h"

namespace kvstow::gpu {

KVSTOW_GPU float ReadRaw(const uint8_t* at, DType dtype) {
  if (dtype == DType::kF32) return std::bit_cast<float>(static_cast<uint32_t>(LoadBytes(at, 4)));
  const auto bits = static_cast<uint16_t>(LoadBytes(at, 2));
  return dtype == DType::kF16 ? FloatOfHalf(bits) : Bf16ToFloat(bits);
}
// To nearest even, saturated.
KVSTOW_GPU void WriteRaw(float x, DType dtype, uint8_t* at) {
  if (dtype == DType::kF32) {
    const float most = 0x1.fffffep127F;
    StoreBytes(std::bit_cast<uint32_t>(Least(Most(x, -most), most)), 4, at);
  } else if (dtype == DType::kF16) {
    StoreBytes(HalfOfFloat(Least(Most(x, -kMaxHalf), kMaxHalf)), 2, at);
  } else {
    StoreBytes(FloatToBf16(Least(Most(x, -kMaxBf16), kMaxBf16)), 2, at);
  }
}

template <typename Launch>
KVSTOW_GPU void PutAngle(const Launch& launch, uint64_t position, uint32_t pair, size_t at) {
  const double angle = static_cast<double>(position) * launch.frequencies[pair];
  launch.cosines[at] = static_cast<float>(std::cos(angle));
  launch.sines[at] = static_cast<float>(std::sin(angle));
}

// The angles of RoPE, which the other steps look up.
struct MakeAngles {
  KVSTOW_GPU uint32_t Items(const JointLaunch& launch) const {
    return launch.coded() * launch.pairs;
  }
  KVSTOW_GPU void One(const JointLaunch& launch, uint32_t page, uint32_t item) const {
    const uint32_t token = item / launch.pairs, pair = item % launch.pairs;
    PutAngle(launch, launch.first_position[page] + launch.first + token, pair,
             size_t{page} * Items(launch) + item);
  }
};

// A value of a row: where it stands, and its partner where RoPE turns it.
class JointValue {
 public:
  KVSTOW_GPU JointValue(const JointLaunch& launch, uint32_t page, uint32_t token, uint32_t column)
      : launch_(launch), column_(launch.columns[column]) {
    const uint32_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
    const auto k = static_cast<uint32_t>(launch.row_values(0)) * bytes;
    const auto v = static_cast<uint32_t>(launch.row_values(1)) * bytes;
    const uint32_t in_layer = column_.part == 0 ? (launch.first + token) * k
                                                : launch.tokens * k + (launch.first + token) * v;
    raw_ = launch.page[page] + (launch.first_layer + column_.layer) * launch.layer_bytes +
           in_layer + column_.value * bytes;
    row_ = size_t{page} * launch.coded() + token;
  }

  KVSTOW_GPU bool turned() const { return column_.pair != JointColumn::kNotTurned; }
  // How far the other of the pair is, in values.
  KVSTOW_GPU int32_t other() const { return column_.other; }
  KVSTOW_GPU uint8_t* raw() const { return raw_; }

  // Turns `mine`; `sign` -1 takes the rotation off, 1 puts it back.
  KVSTOW_GPU float Turn(float mine, float others, float sign, float scale) const {
    const size_t at = row_ * launch_.pairs + column_.pair;
    const float c = launch_.cosines[at] * scale, s = launch_.sines[at] * sign * scale;
    return column_.other > 0 ? mine * c - others * s : mine * c + others * s;
  }

 private:
  const JointLaunch& launch_;
  const JointColumn column_;
  uint8_t* raw_;
  size_t row_;
};

// Raw pages, less what `wide` foretells of them, to `narrow`, a block for a row. Pages with NaN or
// Inf are refused.
struct Gather {
  uint32_t Blocks(const JointLaunch& launch) const { return launch.coded(); }
  size_t SharedBytes(const JointLaunch&) const { return 0; }

  template <typename Run>
  KVSTOW_GPU void Code(const JointLaunch& launch, uint32_t page, uint32_t token, uint8_t*,
                       const Run& run) const {
    const auto stride = static_cast<uint32_t>(PaddedWidth(launch.width));
    const int32_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
    const size_t row = size_t{page} * launch.coded() + token;
    uint16_t* const to = launch.narrow + row * stride;
    const float* const foretold = launch.token_width > 0 ? launch.wide + row * stride : nullptr;
    run([&](uint32_t thread) {
      for (uint32_t i = launch.width + thread; i < stride; i += kThreads) to[i] = 0;
      for (uint32_t i = thread; i < launch.width; i += kThreads) {
        const JointValue value(launch, page, token, i);
        float x = ReadRaw(value.raw(), launch.dtype);
        if (!IsFiniteFloat(x)) launch.refused[page] = 1;
        if (value.turned()) {
          const float others = ReadRaw(value.raw() + value.other() * bytes, launch.dtype);
          x = value.Turn(x, others, -1, 1 / launch.magnitude);
        }
        x -= launch.mean[i];
        to[i] = FloatToBf16(foretold == nullptr ? x : x - foretold[i]);
      }
    });
  }
};

// `wide` to raw pages, a block for a row.
struct Scatter {
  uint32_t Blocks(const JointLaunch& launch) const { return launch.coded(); }
  size_t SharedBytes(const JointLaunch&) const { return 0; }

  template <typename Run>
  KVSTOW_GPU void Code(const JointLaunch& launch, uint32_t page, uint32_t token, uint8_t*,
                       const Run& run) const {
    const size_t row = size_t{page} * launch.coded() + token;
    const float* const from = launch.wide + row * PaddedWidth(launch.width);
    run([&](uint32_t thread) {
      for (uint32_t i = thread; i < launch.width; i += kThreads) {
        const JointValue value(launch, page, token, i);
        float x = from[i] + launch.mean[i];
        if (value.turned()) {
          const uint32_t other = i + static_cast<uint32_t>(value.other());
          x = value.Turn(x, from[other] + launch.mean[other], 1, launch.magnitude);
        }
        WriteRaw(x, launch.dtype, value.raw());
      }
    });
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_JOINT_STEPS_CUH_
