// The parameter of the suites that run on every device.
//
// UNAVAILABLE skips a test visibly (no such hardware here); any other error fails it.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_

#include <memory>
#include <ostream>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace kvstow {

struct DeviceFactory {
  const char* name;  // in the names of the tests
  absl::StatusOr<std::shared_ptr<Device>> (*open)();
};
inline void PrintTo(const DeviceFactory& factory, std::ostream* out) { *out << factory.name; }

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_
