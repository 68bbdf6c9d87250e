// The order in which a stream codes its tokens: OrderByClass of entropy/plane_order.h.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_PLANE_ORDER_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_PLANE_ORDER_CUH_

#include "kernels/cuda/octet.cuh"
#include "kernels/device/plane_layout.h"
#include "kernels/entropy/plane_order.h"

namespace kvstow::gpu {

// A thread's part of finding the token of each place, [tokens], by the class of each token.
KVSTOW_GPU void FindPlaces(const uint8_t* energies, uint32_t tokens, uint16_t* order,
                           uint32_t thread) {
  for (uint32_t t = thread; t < tokens; t += kThreads) {
    const uint8_t energy = energies[t];
    uint32_t place = 0;
    for (uint32_t u = 0; u < tokens; ++u)
      place += energies[u] < energy || (energies[u] == energy && u < t) ? 1 : 0;
    order[place] = static_cast<uint16_t>(t);
  }
}

// A thread's part of finding the shift of each kRansLanes places, once all places are known.
KVSTOW_GPU void FindShifts(const uint8_t* energies, const uint16_t* order, uint32_t tokens,
                           int8_t* shifts, uint32_t thread) {
  for (uint32_t first = thread * kRansLanes; first < tokens; first += kThreads * kRansLanes) {
    const uint32_t end = first + kRansLanes < tokens ? first + kRansLanes : tokens;
    uint32_t classes = 0;
    for (uint32_t p = first; p < end; ++p) classes += energies[order[p]];
    shifts[first / kRansLanes] = static_cast<int8_t>(ClassShift(classes, end - first));
  }
}

// Finds the order of the streams that are encoded. A block takes a stream.
struct OrderTokens {
  uint32_t Blocks(const PlaneEncodeLaunch& launch) const { return launch.streams; }
  size_t SharedBytes(const PlaneEncodeLaunch& launch) const {
    return size_t{launch.most_tokens} * 4;  // energies, shifts, and places of two bytes
  }

  template <typename Run>
  KVSTOW_GPU void Code(const PlaneEncodeLaunch& launch, uint32_t, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const PlaneEncodeJob& job = launch.jobs[block];
    const size_t at = launch.bodies[job.body].energies_at + job.first;
    uint8_t* const energies = shared;
    auto* const shifts = reinterpret_cast<int8_t*>(shared + launch.most_tokens);
    auto* const order = reinterpret_cast<uint16_t*>(shared + 2 * launch.most_tokens);
    run([&](uint32_t thread) {
      for (uint32_t t = thread; t < job.tokens; t += kThreads)
        energies[t] = launch.energies[at + t];
    });
    run([&](uint32_t thread) { FindPlaces(energies, job.tokens, order, thread); });
    run([&](uint32_t thread) { FindShifts(energies, order, job.tokens, shifts, thread); });
    run([&](uint32_t thread) {
      for (uint32_t p = thread; p < job.tokens; p += kThreads) {
        launch.order[at + p] = job.first + order[p];
        launch.shifts[at + p] = shifts[p / kRansLanes];
      }
    });
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_PLANE_ORDER_CUH_
