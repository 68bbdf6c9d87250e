#include "storage/disk/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "storage/disk/segment_format.h"
#include "storage/disk/segment_space.h"

namespace kvstow {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kSlab = 4 * kHugePage;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Memory comes from the kernel, not from malloc: memory that was used before already has small
// pages.
std::shared_ptr<uint8_t[]> HugeBlock(size_t bytes) {
  void* const at =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto* const mapped = static_cast<uint8_t*>(at);
  auto* const block = mapped + (kHugePage - reinterpret_cast<uintptr_t>(at) % kHugePage);
  madvise(block, bytes, MADV_HUGEPAGE);  // a wish
  return {block, [mapped, bytes](uint8_t*) { munmap(mapped, bytes + kHugePage); }};
}

}  // namespace

std::shared_ptr<uint8_t[]> AlignedBlock(size_t bytes) {
  if (bytes >= kHugePage) return HugeBlock(RoundUp(bytes, kHugePage));
  auto* const block =
      static_cast<uint8_t*>(std::aligned_alloc(kDiskBlock, RoundUp(bytes, kDiskBlock)));
  if (block == nullptr) throw std::bad_alloc();
  return {block, [](uint8_t* b) { std::free(b); }};
}

struct BlockPool::Slabs {
  Mutex mu;
  std::map<uint64_t, std::shared_ptr<uint8_t[]>> memory KVSTOW_GUARDED_BY(mu);  // by number
  SegmentSpace space KVSTOW_GUARDED_BY(mu);  // of which they are the files
  uint64_t next KVSTOW_GUARDED_BY(mu) = 0;
  size_t max_free KVSTOW_GUARDED_BY(mu) = 0;

  explicit Slabs(size_t keep) : max_free(keep) {}

  Extent Take(size_t bytes) KVSTOW_REQUIRES(mu) {
    auto extent = space.Take(bytes);
    if (!extent.has_value()) {
      memory[next] = AlignedBlock(kSlab);
      space.AddFile(next++, kSlab);
      extent = space.Take(bytes);
    }
    return *extent;
  }
  void GiveBack(const Extent& extent) {
    std::shared_ptr<uint8_t[]> freed;  // behind the lock
    MutexLock lock(mu);
    space.Give(extent);
    const auto empty = space.RemoveEmptyFile(max_free);
    if (empty.has_value()) freed = std::move(memory.extract(*empty).mapped());
  }
  // From now on no slab stays without a block in use.
  void Retire() {
    std::vector<std::shared_ptr<uint8_t[]>> freed;  // behind the lock
    MutexLock lock(mu);
    max_free = 0;
    while (const auto empty = space.RemoveEmptyFile(0)) {
      freed.push_back(std::move(memory.extract(*empty).mapped()));
    }
  }
};

BlockPool::BlockPool(size_t max_free)
    : max_free_(max_free), slabs_(std::make_shared<Slabs>(max_free)) {}

std::shared_ptr<BlockPool::Slabs> BlockPool::slabs() {
  MutexLock lock(mu_);
  return slabs_;
}

std::shared_ptr<uint8_t[]> BlockPool::Take(size_t bytes) {
  const size_t whole = RoundUp(std::max<size_t>(bytes, 1), kDiskBlock);
  if (whole > kSlab - kDiskBlock) return AlignedBlock(bytes);
  const std::shared_ptr<Slabs> slabs = this->slabs();
  MutexLock lock(slabs->mu);
  const Extent extent = slabs->Take(whole);
  uint8_t* const data = slabs->memory[extent.file].get() + extent.offset;
  return {data, [slabs, extent](uint8_t*) { slabs->GiveBack(extent); }};
}

void BlockPool::Renew() {
  auto old = std::make_shared<Slabs>(max_free_);
  {
    MutexLock lock(mu_);
    std::swap(slabs_, old);
  }
  old->Retire();
}

}  // namespace kvstow
