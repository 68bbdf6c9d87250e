#include "storage/disk/async_transfers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvstow {

AsyncTransfers::AsyncTransfers() {
  if (syscall(SYS_io_setup, kMost, &context_) != 0) context_ = 0;
}

AsyncTransfers::~AsyncTransfers() {
  if (context_ != 0) syscall(SYS_io_destroy, context_);
}

bool AsyncTransfers::StartWrite(int fd, uint64_t offset, std::span<const uint8_t> bytes) {
  iocb request{};
  request.aio_lio_opcode = IOCB_CMD_PWRITE;
  request.aio_fildes = static_cast<uint32_t>(fd);
  request.aio_buf = reinterpret_cast<uint64_t>(bytes.data());
  request.aio_nbytes = bytes.size();
  request.aio_offset = static_cast<int64_t>(offset);
  return Start(request, bytes.size());
}

bool AsyncTransfers::StartRead(int fd, uint64_t offset, std::span<const iovec> buffers) {
  iocb request{};
  request.aio_lio_opcode = IOCB_CMD_PREADV;
  request.aio_fildes = static_cast<uint32_t>(fd);
  request.aio_buf = reinterpret_cast<uint64_t>(buffers.data());
  request.aio_nbytes = buffers.size();
  request.aio_offset = static_cast<int64_t>(offset);
  size_t bytes = 0;
  for (const iovec& buffer : buffers) bytes += buffer.iov_len;
  return Start(request, bytes);
}

bool AsyncTransfers::Start(iocb request, size_t bytes) {
  if (context_ == 0 || under_way() == kMost) return false;
  Slot& slot = slots_[started_ % kMost];
  slot = {.request = request, .bytes = bytes};
  slot.request.aio_data = started_ % kMost;
  iocb* requests[] = {&slot.request};
  if (syscall(SYS_io_submit, context_, 1, requests) != 1) return false;
  ++started_;
  return true;
}

bool AsyncTransfers::WaitFirst() {
  Slot& first = slots_[ended_ % kMost];
  while (!first.done) {
    std::array<io_event, kMost> events;
    const auto n = syscall(SYS_io_getevents, context_, 1, kMost, events.data(), nullptr);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) GiveUp();
    for (size_t i = 0; n > 0 && i < static_cast<size_t>(n); ++i) {
      Slot& slot = slots_[events[i].data];
      slot.done = true;
      slot.whole = events[i].res == static_cast<int64_t>(slot.bytes);
    }
  }
  ++ended_;
  return first.whole;
}

// The context is broken, and nothing is known of any transfer. The kernel ends all of them before
// it destroys the context, so that none touches its bytes any more.
void AsyncTransfers::GiveUp() {
  syscall(SYS_io_destroy, std::exchange(context_, 0));
  for (size_t i = ended_; i < started_; ++i) slots_[i % kMost].done = true;
}

std::unique_ptr<AsyncTransfers> AsyncTransfersPool::Take() {
  {
    MutexLock lock(mu_);
    if (!idle_.empty()) {
      std::unique_ptr<AsyncTransfers> out = std::move(idle_.back());
      idle_.pop_back();
      return out;
    }
  }
  return std::make_unique<AsyncTransfers>();
}

void AsyncTransfersPool::Give(std::unique_ptr<AsyncTransfers> transfers) {
  MutexLock lock(mu_);
  idle_.push_back(std::move(transfers));
}

}  // namespace kvstow
