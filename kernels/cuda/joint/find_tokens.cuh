// Steps that find the tokens of calibrated pages and lay out what is known of them:
// calibration/vocabulary.cc, but for sums in another order. Where two tokens are equally near, the
// first of the vocabulary is found.
//
// joint_steps.cuh says what a step is.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_FIND_TOKENS_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_FIND_TOKENS_CUH_

#include "kernels/cuda/joint/joint_steps.cuh"
#include "kernels/device/token_layout.h"

namespace kvstow::gpu {

// Raw pages to ids. A block takes some tokens, and its threads go through the vocabulary together:
// each signature is read once for all of these tokens.
struct FindTokens {
  static constexpr uint32_t kTogether = 8;

  struct Nearest {
    float distance;
    TokenId id;

    KVSTOW_GPU void Take(const Nearest& other) {
      const bool same = other.distance == distance && other.id < id;
      if (other.distance < distance || same) *this = other;
    }
  };

  uint32_t Blocks(const TokenLaunch& launch) const { return BlocksOf(launch.tokens, kTogether); }
  size_t SharedBytes(const TokenLaunch& launch) const {
    return kTogether * (kThreads * sizeof(Nearest) + launch.signature * sizeof(float));
  }

  template <typename Run>
  KVSTOW_GPU void Code(const TokenLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const uint32_t first = block * kTogether, left = launch.tokens - first;
    const uint32_t count = left < kTogether ? left : kTogether;
    Nearest* const nearest = reinterpret_cast<Nearest*>(shared);  // [kTogether, kThreads]
    float* const signatures = reinterpret_cast<float*>(nearest + kTogether * kThreads);
    run([&](uint32_t thread) {
      for (uint32_t i = thread; i < kTogether * launch.signature; i += kThreads) {
        const uint32_t token = i / launch.signature;
        signatures[i] =
            token < count ? SignatureOf(launch, page, first + token, i % launch.signature) : 0;
      }
    });
    run([&](uint32_t thread) { Search(launch, signatures, thread, nearest); });
    for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
      run([&](uint32_t thread) {
        if (thread >= half) return;
        for (uint32_t token = 0; token < kTogether; ++token) {
          Nearest* const of = nearest + token * kThreads;
          of[thread].Take(of[thread + half]);
        }
      });
    }
    run([&](uint32_t thread) {
      if (thread >= count) return;
      launch.ids[size_t{page} * launch.tokens + first + thread] = nearest[thread * kThreads].id;
    });
  }

 private:
  KVSTOW_GPU static float SignatureOf(const TokenLaunch& launch, uint32_t page, uint32_t token,
                                      uint32_t which) {
    const uint32_t bytes = launch.dtype == DType::kF32 ? 4 : 2;
    const uint8_t* const v =
        launch.page[page] + launch.v_at + size_t{token} * launch.values * bytes;
    float sum = 0;
    for (uint32_t i = 0; i < launch.values; ++i) {
      sum += launch.projection[i * launch.signature + which] *
             ReadRaw(v + size_t{i} * bytes, launch.dtype);
    }
    return sum;
  }

  // Finds the nearest of each kThreads-th token of the vocabulary.
  KVSTOW_GPU static void Search(const TokenLaunch& launch, const float* signatures, uint32_t thread,
                                Nearest* nearest) {
    Nearest best[kTogether];
    for (uint32_t j = 0; j < kTogether; ++j) best[j] = {launch.most_distance, UINT32_MAX};
    for (uint32_t id = thread; id < launch.vocabulary; id += kThreads) {
      float distances[kTogether] = {};
      for (uint32_t i = 0; i < launch.signature; ++i) {
        const float known = launch.signatures[size_t{i} * launch.vocabulary + id];
        for (uint32_t j = 0; j < kTogether; ++j) {
          const float away = known - signatures[j * launch.signature + i];
          distances[j] += away * away;
        }
      }
      for (uint32_t j = 0; j < kTogether; ++j) {
        if (distances[j] < best[j].distance) best[j] = {distances[j], id};  // false for NaN
      }
    }
    for (uint32_t j = 0; j < kTogether; ++j) nearest[j * kThreads + thread] = best[j];
  }
};
static_assert(kUnknownToken == UINT32_MAX);

// Ids to rows of the product. A token that is not known has zeros.
struct PutFeatures {
  KVSTOW_GPU uint32_t Items(const TokenLaunch& launch) const {
    return launch.coded() * launch.stride;
  }
  KVSTOW_GPU void One(const TokenLaunch& launch, uint32_t page, uint32_t item) const {
    const uint32_t token = item / launch.stride, feature = item % launch.stride;
    const TokenId id = launch.ids[size_t{page} * launch.tokens + launch.first + token];
    float value = 0;
    if (id < launch.vocabulary && feature < launch.features)
      value = launch.codes[size_t{id} * launch.features + feature];
    if (id < launch.vocabulary && feature == launch.features) value = 1;
    launch.rows[size_t{page} * Items(launch) + item] = FloatToBf16(value);
  }
};

template <typename Start>
void LookAtTokens(const TokenLaunch& launch, const Start& start) {
  if (launch.pages == 0) return;
  if (launch.page[0] != nullptr) start(FindTokens{});
  if (launch.coded() > 0) start(EachItem{PutFeatures{}});
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_FIND_TOKENS_CUH_
