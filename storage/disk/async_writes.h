// Concurrent writes by Linux's native asynchronous I/O (io_submit(2)), which does not wait on files
// that are opened with O_DIRECT. Where the kernel has no such I/O, or the file is buffered, Start
// either does the write before it returns, or refuses it.
//
// One user at a time; AsyncWritesPool is thread-safe. The kernel takes long to make a context and
// to destroy it (milliseconds to destroy), so the pool keeps them.
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
  static constexpr size_t kMost = 8;  // writes at once
  struct Part {
    uint64_t offset = 0;  // in the file
    std::span<const uint8_t> bytes;
  };

  AsyncWrites();
  ~AsyncWrites();
  AsyncWrites(const AsyncWrites&) = delete;
  AsyncWrites& operator=(const AsyncWrites&) = delete;

  // Begins a write. Its bytes must not change until Wait. Returns false when it began none: kMost
  // writes are under way already, or the kernel takes none.
  bool Start(int fd, const Part& part);
  // Waits for all writes. Returns those that were not written whole. The caller writes them again,
  // and that write reports the error.
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
  void Give(std::unique_ptr<AsyncWrites> writes);  // no write may be under way

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<AsyncWrites>> idle_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ASYNC_WRITES_H_
