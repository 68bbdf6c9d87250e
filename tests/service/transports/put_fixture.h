// A server with an exact space "s", and pages to put into it.
#ifndef KVSTOW_TESTS_SERVICE_TRANSPORTS_PUT_FIXTURE_H_
#define KVSTOW_TESTS_SERVICE_TRANSPORTS_PUT_FIXTURE_H_

#include <string>

#include "tests/service/server_fixture.h"

namespace kvstow::testing {

class PutTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  }
  PageIn Page(const std::string& key, uint32_t seed, uint32_t tokens = 64) {
    return {.key = key, .raw = RandomPage(SmallSpec(), tokens, seed), .tokens = tokens};
  }
  std::string GetBytes(const std::string& key) {
    const auto got = client_->Get("s", {Ask(key)});
    return got.pages.size() == 1 && got.pages[0].reply.status() == v1::HIT ? got.pages[0].data : "";
  }
  // Nothing is staged, no stream is open, and no page but `pages` is there.
  void ExpectNothingLeft(uint64_t pages) {
    EXPECT_TRUE(Eventually([&] { return Metric("kvstow_open_streams{method=\"put\"}") == 0; }));
    EXPECT_EQ(server_->staging().staged_bytes(), 0u);
    EXPECT_EQ(server_->staging().open_tickets(), 0u);
    EXPECT_EQ(server_->store().residency().Usage().pages, pages);
  }
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_TRANSPORTS_PUT_FIXTURE_H_
