// Concurrent reads and writes by Linux's native asynchronous I/O (io_submit(2)), which does not
// wait on files that are opened with O_DIRECT. Where the kernel has no such I/O, or the file is
// buffered, a transfer is either done before it returns, or refused.
//
// One user at a time; AsyncTransfersPool is thread-safe. The kernel takes long to make a context
// and to destroy it (milliseconds to destroy), so the pool keeps them.
#ifndef KVSTOW_STORAGE_DISK_ASYNC_TRANSFERS_H_
#define KVSTOW_STORAGE_DISK_ASYNC_TRANSFERS_H_

#include <linux/aio_abi.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

class AsyncTransfers {
 public:
  static constexpr size_t kMost = 8;  // transfers at once

  AsyncTransfers();
  ~AsyncTransfers();
  AsyncTransfers(const AsyncTransfers&) = delete;
  AsyncTransfers& operator=(const AsyncTransfers&) = delete;

  // Begin a transfer. Its bytes belong to the kernel until WaitFirst returned for it. Return false
  // when they began none: kMost are under way already, or the kernel takes none.
  bool StartWrite(int fd, uint64_t offset, std::span<const uint8_t> bytes);
  bool StartRead(int fd, uint64_t offset, std::span<const iovec> buffers);  // one after the other
  size_t under_way() const { return started_ - ended_; }
  // Waits for the transfer that was begun first, and ends it. Returns whether all of its bytes were
  // transferred. If not, the caller does it again, and that call reports the error. Some transfer
  // is under way.
  bool WaitFirst();

 private:
  struct Slot {
    iocb request{};
    size_t bytes = 0;
    bool done = false, whole = false;
  };
  bool Start(iocb request, size_t bytes);
  void GiveUp();

  aio_context_t context_ = 0;  // 0 = the kernel has none
  std::array<Slot, kMost> slots_{};
  size_t started_ = 0, ended_ = 0;  // number N has the slot N % kMost
};

class AsyncTransfersPool {
 public:
  std::unique_ptr<AsyncTransfers> Take();
  void Give(std::unique_ptr<AsyncTransfers> transfers);  // none may be under way

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<AsyncTransfers>> idle_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ASYNC_TRANSFERS_H_
