// Memory for direct I/O: blocks at multiples of kDiskBlock (storage/disk/segment_format.h).
//
// BlockPool cuts blocks from slabs of huge pages, and keeps some of the blocks that were given
// back. The kernel pins every page that a disk reads into or writes from, and a disk request has
// only so many pieces. So a read of 1 MiB into small pages may take twice as long; fresh pages cost
// a third more. The pool frees a slab only when all of its blocks were given back, so blocks are
// for bytes in transit, not for bytes to keep. Thread-safe; blocks may outlive the pool.
#ifndef KVSTOW_STORAGE_DISK_BLOCK_POOL_H_
#define KVSTOW_STORAGE_DISK_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/mutex.h"

namespace kvstow {

// Returns uninitialised bytes. From 2 MiB on it asks for huge pages, and takes whole ones. Throws
// std::bad_alloc, as `new` does.
std::shared_ptr<uint8_t[]> AlignedBlock(size_t bytes);

class BlockPool {
 public:
  // Keeps about `max_free` free bytes.
  explicit BlockPool(size_t max_free);
  // Returns at least `bytes` bytes, uninitialised.
  std::shared_ptr<uint8_t[]> Take(size_t bytes);
  // Gives all slabs back to the kernel, which clears them, as soon as each has no block in use.
  void Renew();

 private:
  struct Slabs;
  std::shared_ptr<Slabs> slabs();

  const size_t max_free_;
  Mutex mu_;
  std::shared_ptr<Slabs> slabs_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_BLOCK_POOL_H_
