#include "kernels/device/host_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace kvstow::testing {
namespace {

TEST(HostThreadsTest, EachItemIsDoneOnceWhateverTheirNumber) {
  for (const size_t count : {0, 1, 7, 8, 16, 1000}) {
    std::vector<std::atomic<int>> done(count);
    OnHostThreads(count, [&](size_t i) { ++done[i]; });
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(done[i], 1) << i << " of " << count;
  }
}

}  // namespace
}  // namespace kvstow::testing
