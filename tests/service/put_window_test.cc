#include <gtest/gtest.h>

#include "service/streams.h"
#include "service/worker_pool.h"
#include "tests/service/bare_server.h"

namespace kvstow::testing {
namespace {

constexpr uint64_t kPage = 1'000'000;

class PutWindowTest : public ::testing::Test {
 protected:
  // The window of a stream that ends at once; 0: refused.
  uint64_t Window() {
    PutWindow window(parts_);
    const auto bytes = window.Take(kPage);
    EXPECT_TRUE(bytes.ok() || absl::IsResourceExhausted(bytes.status())) << bytes.status();
    return bytes.value_or(0);
  }

  BareServer server_{/*staging_bytes=*/100 * kPage};
  DirectParts direct_ = server_.Direct();
  WorkerPool pool_{"test", 1};
  StreamParts parts_{direct_.spaces,  direct_.staging, direct_.writer, direct_.reader,
                     direct_.metrics, pool_,           pool_,          {.put_bytes = 16 * kPage}};
};

TEST_F(PutWindowTest, PagesOfDirectConnectionsAreNotThere) {
  EXPECT_EQ(Window(), 4 * kPage) << "a quarter";
  parts_.direct_bytes = 4 * kPage;
  EXPECT_EQ(Window(), 3 * kPage);
}

TEST_F(PutWindowTest, ButTakeNoMoreThanAHalf) {
  parts_.direct_bytes = 1'000 * kPage;
  {
    PutWindow first(parts_), second(parts_), third(parts_), fourth(parts_);
    for (PutWindow* const window : {&first, &second, &third, &fourth}) {
      const auto bytes = window->Take(kPage);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(*bytes, 2 * kPage) << "two pages, of a half of 16";
    }
    EXPECT_EQ(Window(), 0);
  }
  EXPECT_EQ(Window(), 2 * kPage);
}

TEST_F(PutWindowTest, AStreamAloneIsNeverRefused) {
  parts_.direct_bytes = 1'000 * kPage;
  parts_.limits.put_bytes = kPage;
  EXPECT_EQ(Window(), 2 * kPage);
}

}  // namespace
}  // namespace kvstow::testing
