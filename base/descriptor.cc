#include "base/descriptor.h"

#include <cerrno>

namespace kvstow {

bool WriteFromBegin(int file, std::span<const uint8_t> bytes) {
  for (off_t at = 0; !bytes.empty();) {
    const ssize_t n = pwrite(file, bytes.data(), bytes.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += n;
  }
  return true;
}

}  // namespace kvstow
