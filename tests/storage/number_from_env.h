// How long a test runs and where its randomness starts, from outside: see docs/RELIABILITY.md.
#ifndef KVSTOW_TESTS_STORAGE_NUMBER_FROM_ENV_H_
#define KVSTOW_TESTS_STORAGE_NUMBER_FROM_ENV_H_

#include <cstdint>
#include <cstdlib>

namespace kvstow {

inline uint64_t NumberFromEnv(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_NUMBER_FROM_ENV_H_
