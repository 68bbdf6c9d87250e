// A step whose items go alone.
#ifndef KVSTOW_KERNELS_CUDA_EACH_ITEM_CUH_
#define KVSTOW_KERNELS_CUDA_EACH_ITEM_CUH_

#include "kernels/cuda/octet.cuh"
#include "kernels/device/slab_layout.h"

namespace kvstow::gpu {

constexpr uint32_t BlocksOf(size_t items, uint32_t items_a_block) {
  return static_cast<uint32_t>((items + items_a_block - 1) / items_a_block);
}

// A thread does one. An Item is a struct of plain numbers: Items() says how many of them a page
// has, One() does it. They are fewer than 2^32: a GPU divides 32 bits several times as fast as 64.
template <typename Item>
struct EachItem {
  Item item;

  template <typename Launch>
  uint32_t Blocks(const Launch& launch) const {
    return BlocksOf(item.Items(launch), kThreads);
  }
  template <typename Launch>
  size_t SharedBytes(const Launch&) const {
    return 0;
  }

  template <typename Launch, typename Run>
  KVSTOW_GPU void Code(const Launch& launch, uint32_t page, uint32_t block, uint8_t*,
                       const Run& run) const {
    run([&](uint32_t thread) {
      const uint32_t i = block * kThreads + thread;
      if (i < item.Items(launch)) item.One(launch, page, i);
    });
  }
};
template <typename Item>
EachItem(Item) -> EachItem<Item>;

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_EACH_ITEM_CUH_
