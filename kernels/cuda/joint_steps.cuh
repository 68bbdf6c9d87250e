// The steps of calibrated pages around the product: raw values to vectors, coefficients to
// magnitudes, vectors to raw values, and first tokens as they are.
//
// A step is a struct of plain numbers: Blocks() thread blocks a page, SharedBytes() of shared
// memory each; Code() is the work of one of them, in phases as tile.cuh has them. EachItem
// (each_item.cuh) makes one of what is done value by value. Arithmetic is that of joint_vectors.cc,
// token_importance.cc and dead_zone.h but for the order of sums and the logarithms of the platform:
// decisions that those make are written into the page.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_STEPS_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_STEPS_CUH_

#include <cmath>

#include "kernels/calibration/token_importance.h"
#include "kernels/cuda/score_memory.cuh"
#include "kernels/device/joint_layout.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"
#include "kernels/methods/joint_sampling.h"

namespace kvstow::gpu {

// Where a value of a vector stands in a raw page.
struct JointPlace {
  uint32_t part, channel;  // of its head
  size_t slab, value;      // bytes within the page; values within a token's row
};
KVSTOW_GPU JointPlace PlaceOf(const JointLaunch& launch, uint32_t column) {
  const auto k = static_cast<uint32_t>(launch.row_values(0));
  const uint32_t part = column < launch.layers * k ? 0 : 1;
  const uint32_t in_part = column - part * launch.layers * k;
  const auto row = static_cast<uint32_t>(launch.row_values(part));
  const size_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
  const size_t layer = launch.first_layer + in_part / row;
  const size_t before = part == 0 ? 0 : launch.tokens * launch.row_values(0) * bytes;
  const uint32_t value = in_part % row;
  return {part, value % launch.dim[part], layer * launch.layer_bytes + before, value};
}

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

// The angles of RoPE, which the other steps look up.
struct MakeAngles {
  KVSTOW_GPU uint32_t Items(const JointLaunch& launch) const {
    return launch.coded() * launch.pairs;
  }
  KVSTOW_GPU void One(const JointLaunch& launch, uint32_t page, uint32_t item) const {
    const uint32_t token = item / launch.pairs, pair = item % launch.pairs;
    const uint64_t position = launch.first_position[page] + launch.first + token;
    const double angle = static_cast<double>(position) * launch.frequencies[pair];
    const size_t at = size_t{page} * Items(launch) + item;
    launch.cosines[at] = static_cast<float>(std::cos(angle));
    launch.sines[at] = static_cast<float>(std::sin(angle));
  }
};

// How RoPE turns a value of K: with the one `other` values from it, which is behind it when
// `leads`. Not at all when `turned` is false.
struct JointTurn {
  bool turned = false, leads = false;
  int32_t other = 0;
  float cosine = 1, sine = 0;

  // `sign` -1 takes the rotation off, 1 puts it back.
  KVSTOW_GPU float Of(float mine, float others, float sign, float scale) const {
    if (!turned) return mine;
    const float c = cosine * scale, s = sine * sign * scale;
    return leads ? mine * c - others * s : mine * c + others * s;
  }
};
KVSTOW_GPU JointTurn TurnOf(const JointLaunch& launch, const JointPlace& place, size_t row) {
  JointTurn turn;
  if (place.part != 0 || place.channel >= 2 * launch.pairs) return turn;
  const uint32_t step = launch.interleaved ? 1 : launch.pairs;
  const uint32_t pair = launch.interleaved ? place.channel / 2 : place.channel % launch.pairs;
  turn.turned = true;
  turn.leads = launch.interleaved ? place.channel % 2 == 0 : place.channel < launch.pairs;
  turn.other = turn.leads ? static_cast<int32_t>(step) : -static_cast<int32_t>(step);
  turn.cosine = launch.cosines[row * launch.pairs + pair];
  turn.sine = launch.sines[row * launch.pairs + pair];
  return turn;
}

// Raw pages to `narrow`. Pages with NaN or Inf are refused.
struct Gather {
  KVSTOW_GPU uint32_t Items(const JointLaunch& launch) const {
    return launch.coded() * static_cast<uint32_t>(PaddedWidth(launch.width));
  }
  KVSTOW_GPU void One(const JointLaunch& launch, uint32_t page, uint32_t item) const {
    const auto stride = static_cast<uint32_t>(PaddedWidth(launch.width));
    const uint32_t column = item % stride, token = item / stride;
    const size_t row = size_t{page} * launch.coded() + token;
    uint16_t* const to = launch.narrow + row * stride + column;
    if (column >= launch.width) {
      *to = 0;
      return;
    }
    const JointPlace place = PlaceOf(launch, column);
    const JointTurn turn = TurnOf(launch, place, row);
    const size_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
    const size_t at = (launch.first + token) * launch.row_values(place.part) + place.value;
    const uint8_t* const raw = launch.page[page] + place.slab + at * bytes;
    const float mine = ReadRaw(raw, launch.dtype);
    if (!IsFiniteFloat(mine)) launch.refused[page] = 1;
    const int64_t away = turn.other * static_cast<int64_t>(bytes);
    const float others = turn.turned ? ReadRaw(raw + away, launch.dtype) : 0;
    *to = FloatToBf16(turn.Of(mine, others, -1, 1 / launch.magnitude) - launch.mean[column]);
  }
};

// `wide` to raw pages.
struct Scatter {
  KVSTOW_GPU uint32_t Items(const JointLaunch& launch) const {
    return launch.coded() * launch.width;
  }
  KVSTOW_GPU void One(const JointLaunch& launch, uint32_t page, uint32_t item) const {
    const uint32_t column = item % launch.width, token = item / launch.width;
    const size_t row = size_t{page} * launch.coded() + token;
    const JointPlace place = PlaceOf(launch, column);
    const JointTurn turn = TurnOf(launch, place, row);
    const float* const from = launch.wide + row * PaddedWidth(launch.width) + column;
    const float* const mean = launch.mean + column;
    const float mine = from[0] + mean[0];
    const float others = turn.turned ? from[turn.other] + mean[turn.other] : 0;
    const size_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
    const size_t at = (launch.first + token) * launch.row_values(place.part) + place.value;
    WriteRaw(turn.Of(mine, others, 1, launch.magnitude), launch.dtype,
             launch.page[page] + place.slab + at * bytes);
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_STEPS_CUH_
