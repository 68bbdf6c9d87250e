// Writes that are under way at once: Linux's native asynchronous I/O (io_submit(2)), which files
// opened with O_DIRECT do without waiting. Where the kernel has none, or the file is buffered, a
// write is done before Start returns, or Start says no.
//
// One user at a time; AsyncWritesPool is thread-safe. Making one and letting it go takes the kernel
// long (milliseconds for the latter), so they are kept.
#ifndef KVSTOW_STORAGE_DISK_ASYNC_WRITES_H_
#define KVSTOW_STORAGE_DISK_ASYNC_WRITES_H_

#include <linux/aio_abi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

class AsyncWrites {
 public:
  static constexpr size_t kMost = 8;  // at once
  struct Part {
    uint64_t offset = 0;  // in the file
    std::span<const uint8_t> bytes;
  };

  AsyncWrites();
  ~AsyncWrites();
  AsyncWrites(const AsyncWrites&) = delete;
  AsyncWrites& operator=(const AsyncWrites&) = delete;

  // Begins a write; its bytes stay as they are until Wait. False: it was not begun, for there are
  // kMost already or the kernel takes none.
  bool Start(int fd, const Part& part);
  // Waits for all. Those that were not written whole: to be written again, which says what is
  // wrong.
  std::vector<Part> Wait();

 private:
  aio_context_t context_ = 0;  // 0 = the kernel has none
  std::array<iocb, kMost> requests_{};
  std::array<Part, kMost> parts_;
  size_t started_ = 0;
};

class AsyncWritesPool {
 public:
  std::unique_ptr<AsyncWrites> Take();
  void Give(std::unique_ptr<AsyncWrites> writes);  // nothing is under way

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<AsyncWrites>> idle_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ASYNC_WRITES_H_
