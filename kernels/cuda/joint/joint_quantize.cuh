// Steps of calibrated pages: coefficients to magnitudes, and first tokens as they are.
// joint_steps.cuh has the others and says what a step is.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_JOINT_QUANTIZE_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_JOINT_QUANTIZE_CUH_

#include "kernels/cuda/joint/joint_steps.cuh"

namespace kvstow::gpu {

// `wide` to q, energies, classes and sample: a block for a row. q is 0 behind the rank. Magnitudes
// beyond int16 are refused.
struct QuantizeStep {
  static constexpr float kMost = 32766;
  // The coefficients of one thread add these to the features, to the energy of the leading quarter,
  // of those that tell the energy class, and of all.
  struct Sums {
    float features, quarter, telling, all;

    KVSTOW_GPU void Add(const Sums& other) {
      features += other.features;
      quarter += other.quarter;
      telling += other.telling;
      all += other.all;
    }
  };

  uint32_t Blocks(const JointLaunch& launch) const { return launch.coded(); }
  size_t SharedBytes(const JointLaunch&) const { return (kThreads + 1) * sizeof(Sums); }

  template <typename Run>
  KVSTOW_GPU void Code(const JointLaunch& launch, uint32_t page, uint32_t token, uint8_t* shared,
                       const Run& run) const {
    const size_t row = size_t{page} * launch.coded() + token;
    const float* const c = launch.wide + row * PaddedWidth(launch.rank);
    Sums* const sums = reinterpret_cast<Sums*>(shared);
    float* const factor = &sums[kThreads].features;
    run([&](uint32_t thread) { sums[thread] = SumsOf(launch, c, row, thread); });
    for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
      run([&](uint32_t thread) {
        if (thread < half) sums[thread].Add(sums[thread + half]);
      });
    }
    run([&](uint32_t thread) {
      if (thread != 0) return;
      const uint32_t in_page = launch.first + token;
      float log_step = launch.end_steps[in_page];
      if (launch.log_steps != nullptr) {
        log_step += launch.log_steps[size_t{page} * launch.tokens + in_page];
      }
      *factor = Classify(launch, row, sums[0], log_step);
    });
    run([&](uint32_t thread) {
      const bool kept = token / kRansLanes % kGainEvery == 0;
      const uint32_t place = token / (kRansLanes * kGainEvery) * kRansLanes + token % kRansLanes;
      float* const sample = launch.sample + (size_t{page} * launch.sampled + place) * launch.rank;
      const auto stride = static_cast<uint32_t>(PaddedWidth(launch.rank));
      int16_t* const q = launch.q + row * stride;
      for (uint32_t i = launch.rank + thread; i < stride; i += kThreads) q[i] = 0;
      for (uint32_t i = thread; i < launch.rank; i += kThreads) {
        const float value = c[i] / *factor;
        const float steps = std::abs(value) * launch.inverse_step + (1 - kPlaneDeadZone);
        const bool fits = steps < kMost;  // false for NaN
        if (!fits) launch.refused[page] = 1;
        const auto whole = static_cast<int16_t>(fits ? steps : 0);
        q[i] = value < 0 ? static_cast<int16_t>(-whole) : whole;
        if (kept) sample[i] = value;
      }
    });
  }

 private:
  KVSTOW_GPU static Sums SumsOf(const JointLaunch& launch, const float* c, size_t row,
                                uint32_t thread) {
    Sums sums = {0, 0, 0, 0};
    if (launch.weights != nullptr && launch.token_weights != nullptr) {
      const uint16_t* const known = launch.token_rows + row * PaddedWidth(launch.token_width);
      for (uint32_t i = thread; i + 1 < launch.token_width; i += kThreads)
        sums.features += launch.token_weights[i] * Bf16ToFloat(known[i]);
    }
    for (uint32_t i = thread; i < launch.rank; i += kThreads) {
      const float u = c[i] / launch.sigma[i];
      if (i < launch.features && launch.weights != nullptr) {
        const float clipped = Least(Most(u, -kImportanceClip), kImportanceClip);
        sums.features += launch.weights[i] * clipped +
                         launch.weights[launch.features + i] * (clipped * clipped - 1);
      }
      if (i < launch.quarter) sums.quarter += u * u;
      if (i < launch.telling) sums.telling += u * u;
      sums.all += u * u;
    }
    return sums;
  }

  // Writes the classes of a row; what its coefficients are over. `log_step` is what attention and
  // the end of the page add.
  KVSTOW_GPU static float Classify(const JointLaunch& launch, size_t row, const Sums& total,
                                   float log_step) {
    const float quarter = total.quarter / static_cast<float>(launch.quarter);
    float factor = 1;
    if (launch.weights != nullptr) {
      const float* const last = launch.weights + 2 * launch.features;
      const float all = total.all / static_cast<float>(launch.rank);
      const float sensitivity = total.features + last[0] * std::log(quarter + 1e-3F) +
                                last[1] * std::log(all + 1e-3F) + last[2];
      const float steps = -launch.focus * sensitivity / std::log(2.0F) + 2 * log_step;
      const float k = std::round(steps) + kPlainStepClass;
      const float known = k == k ? k : static_cast<float>(kPlainStepClass);
      const float step_class = Least(Most(known, 0), kStepClasses - 1);
      launch.classes[row] = static_cast<uint8_t>(step_class);
      factor = std::exp2((step_class - kPlainStepClass) / 2);
    }
    const float telling = total.telling / static_cast<float>(launch.telling);
    const float octaves = std::round(std::log2(telling / (factor * factor) + 1e-9F));
    const float energy = Least(Most(octaves + kPlaneEnergies / 2, 0), kPlaneEnergies - 1);
    launch.energies[row] = static_cast<uint8_t>(energy);  // of a NaN: the page is refused
    return factor;
  }
};

// First tokens of the raw pages to `head`, or back.
struct CopyFirst {
  bool back = false;

  KVSTOW_GPU uint32_t Items(const JointLaunch& launch) const { return launch.width * launch.first; }
  KVSTOW_GPU void One(const JointLaunch& launch, uint32_t page, uint32_t item) const {
    // As a raw page of these tokens and layers alone.
    const auto k = static_cast<uint32_t>(launch.row_values(0) * launch.first);
    const auto v = static_cast<uint32_t>(launch.row_values(1) * launch.first);
    const uint32_t layer = item / (k + v), in_layer = item % (k + v);
    const size_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
    const size_t in_page =
        in_layer < k ? in_layer : launch.tokens * launch.row_values(0) + in_layer - k;
    uint8_t* const raw =
        launch.page[page] + (launch.first_layer + layer) * launch.layer_bytes + in_page * bytes;
    uint8_t* const head = launch.head + (size_t{page} * launch.width * launch.first + item) * bytes;
    const auto size = static_cast<uint32_t>(bytes);
    StoreBytes(LoadBytes(back ? head : raw, size), size, back ? raw : head);
  }
};

// The parts of a launch before the product and after it.
template <typename Start>
void BeforeEncoding(const JointLaunch& launch, const Start& start) {
  if (launch.first > 0) start(EachItem{CopyFirst{}});
  if (launch.coded() == 0) return;
  if (launch.pairs > 0) start(EachItem{MakeAngles{}});
  start(Gather{});
}
template <typename Start>
void AfterEncoding(const JointLaunch& launch, const Start& start) {
  if (launch.coded() > 0) start(QuantizeStep{});
}
template <typename Start>
void AfterDecoding(const JointLaunch& launch, const Start& start) {
  if (launch.first > 0) start(EachItem{CopyFirst{.back = true}});
  if (launch.coded() == 0) return;
  if (launch.pairs > 0) start(EachItem{MakeAngles{}});
  start(Scatter{});
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_JOINT_QUANTIZE_CUH_
