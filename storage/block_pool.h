// Memory for direct I/O: blocks at multiples of kDiskBlock (storage/segment_format.h).
//
// BlockPool keeps blocks that were given back for the next one that asks for such a size: fresh
// pages of memory cost a third of what reading into them from a fast disk does. Thread-safe; blocks
// may outlive the pool.
#ifndef KVSTOW_STORAGE_BLOCK_POOL_H_
#define KVSTOW_STORAGE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvstow {

// Its bytes are not initialised. From 2 MiB on it asks for huge pages, and takes whole ones. Throws
// std::bad_alloc, as `new` does.
std::shared_ptr<uint8_t[]> AlignedBlock(size_t bytes);

class BlockPool {
 public:
  // Keeps at most `max_kept` bytes.
  explicit BlockPool(size_t max_kept);
  // At least `bytes`, and at most a sixteenth more than that; not initialised.
  std::shared_ptr<uint8_t[]> Take(size_t bytes);

 private:
  struct Kept;
  const std::shared_ptr<Kept> kept_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_BLOCK_POOL_H_
