// The parameter of the suites that run on every device, and bytes for them.
//
// UNAVAILABLE skips a test visibly (no such hardware here); any other error fails it.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace kvstow {

struct DeviceFactory {
  const char* name;  // in the names of the tests
  absl::StatusOr<std::shared_ptr<Device>> (*open)();
};
inline void PrintTo(const DeviceFactory& factory, std::ostream* out) { *out << factory.name; }

// Bytes that differ from one seed and one place to another.
inline std::vector<uint8_t> PatternBytes(size_t size, uint32_t seed) {
  std::vector<uint8_t> bytes(size);
  uint32_t x = seed * 2654435761u + 1;
  for (uint8_t& b : bytes) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    b = static_cast<uint8_t>(x >> 8);
  }
  return bytes;
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_
