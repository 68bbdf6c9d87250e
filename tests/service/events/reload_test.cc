// What routers are told after the access file was read again.
#include <gtest/gtest.h>

#include "tests/service/access/tenants.h"

namespace kvstow::testing {
namespace {

class EventsReloadTest : public TenantsTest {
 protected:
  ~EventsReloadTest() override { StopServer(); }
  void Publish(bool pages_of_a) {
    access_["tenants"]["a"]["kv_events"] = pages_of_a;
    WriteAccess();
    ASSERT_TRUE(server_->Reload().ok());
  }
  bool Told(const std::string& event, double times) {
    return Eventually(
        [&] { return Metric("kvstow_kv_events_total{type=\"" + event + "\"}") == times; });
  }
};

TEST_F(EventsReloadTest, ATenantThatIsPublishedNoLongerIsForgotten) {
  access_["tenants"]["a"]["kv_events"] = true;
  access_["tenants"]["b"]["kv_events"] = true;
  config_.kv_events_listen = "127.0.0.1:0";
  StartServer();
  for (const std::string person : {"a.worker", "b.worker"}) {
    ASSERT_TRUE(As(person).OpenSpace("s", "raw").ok());
    ASSERT_EQ(As(person).Put("s", {Page("k", 1)}).pages.at(0).status(), v1::STORED);
  }
  ASSERT_TRUE(Told("stored", 2));
  ASSERT_TRUE(Told("cleared", 1)) << "at the start";
  Publish(/*pages_of_a=*/false);
  EXPECT_TRUE(Told("cleared", 2));
  EXPECT_TRUE(Told("stored", 3)) << "the page of b, anew";
  Publish(/*pages_of_a=*/true);
  EXPECT_TRUE(Told("cleared", 3));
  EXPECT_TRUE(Told("stored", 5));
}

}  // namespace
}  // namespace kvstow::testing
