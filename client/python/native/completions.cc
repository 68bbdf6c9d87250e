#include "client/python/native/completions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvstow::python {

Completions::Completions() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) throw std::runtime_error(std::string("eventfd: ") + std::strerror(errno));
}

Completions::~Completions() { close(descriptor_); }

void Completions::Push(uint64_t call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(call);
  // Fails only where the counter is full, and then the descriptor is readable.
  [[maybe_unused]] const int result = eventfd_write(descriptor_, 1);
}

std::vector<uint64_t> Completions::Drain() {
  const std::lock_guard lock(mutex_);
  eventfd_t count = 0;
  [[maybe_unused]] const int result = eventfd_read(descriptor_, &count);
  return std::exchange(calls_, {});
}

}  // namespace kvstow::python
