// Descriptor: owns a file descriptor of the system, and closes it. A negative number is none.
//
// Movable; not thread-safe.
#ifndef KVSTOW_BASE_DESCRIPTOR_H_
#define KVSTOW_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <cstdint>
#include <span>
#include <utility>

namespace kvstow {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

// Writes the bytes over a file from its begin on. Returns false, with errno, when it cannot.
bool WriteFromBegin(int file, std::span<const uint8_t> bytes);

}  // namespace kvstow

#endif  // KVSTOW_BASE_DESCRIPTOR_H_
