#include "storage/disk/async_writes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvstow {

AsyncWrites::AsyncWrites() {
  if (syscall(SYS_io_setup, kMost, &context_) != 0) context_ = 0;
}

AsyncWrites::~AsyncWrites() {
  if (context_ != 0) syscall(SYS_io_destroy, context_);
}

bool AsyncWrites::Start(int fd, const Part& part) {
  if (context_ == 0 || started_ == kMost) return false;
  iocb& request = requests_[started_];
  request = {};
  request.aio_data = started_;
  request.aio_lio_opcode = IOCB_CMD_PWRITE;
  request.aio_fildes = static_cast<uint32_t>(fd);
  request.aio_buf = reinterpret_cast<uint64_t>(part.bytes.data());
  request.aio_nbytes = part.bytes.size();
  request.aio_offset = static_cast<int64_t>(part.offset);
  iocb* requests[] = {&request};
  if (syscall(SYS_io_submit, context_, 1, requests) != 1) return false;
  parts_[started_++] = part;
  return true;
}

std::vector<AsyncWrites::Part> AsyncWrites::Wait() {
  std::vector<Part> failed;
  for (size_t done = 0; done < started_;) {
    std::array<io_event, kMost> events;
    const auto n = syscall(SYS_io_getevents, context_, started_ - done, started_ - done,
                           events.data(), nullptr);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {  // the context is broken: nothing is known of any
      failed.assign(parts_.begin(), parts_.begin() + started_);
      break;
    }
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const Part& part = parts_[events[i].data];
      if (events[i].res != static_cast<int64_t>(part.bytes.size())) failed.push_back(part);
    }
    done += static_cast<size_t>(n);
  }
  started_ = 0;
  return failed;
}

std::unique_ptr<AsyncWrites> AsyncWritesPool::Take() {
  {
    MutexLock lock(mu_);
    if (!idle_.empty()) {
      std::unique_ptr<AsyncWrites> out = std::move(idle_.back());
      idle_.pop_back();
      return out;
    }
  }
  return std::make_unique<AsyncWrites>();
}

void AsyncWritesPool::Give(std::unique_ptr<AsyncWrites> writes) {
  MutexLock lock(mu_);
  idle_.push_back(std::move(writes));
}

}  // namespace kvstow
