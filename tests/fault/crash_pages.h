// The pages that kvstow_crash_writer puts and kill_test expects.
#ifndef KVSTOW_TESTS_FAULT_CRASH_PAGES_H_
#define KVSTOW_TESTS_FAULT_CRASH_PAGES_H_

#include "tests/storage/prf_page.h"

namespace kvstow {

inline PrfPage CrashPage(uint64_t key) {
  PrfPage page{.key = key, .sizes = {}, .hot = key % 2 == 0};
  for (uint64_t i = 0; i < 1 + key % 3; ++i) {
    page.sizes.push_back(static_cast<uint32_t>(1000 + 7000 * ((key + i) % 5)));
  }
  return page;
}

// The cold form of a hot page.
inline PrfPage CrashColdPage(uint64_t key) {
  return {.key = key, .version = 1001, .sizes = {300, 400}};
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_FAULT_CRASH_PAGES_H_
