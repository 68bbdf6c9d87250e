// The log of slow and failing calls, as gRPC's calls get into it.
#include "service/api/call_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "client/client.h"
#include "tests/log_lines.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

constexpr char kParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

class CallNotesTest : public ServerTest {
 protected:
  CallNotesTest() { EXPECT_TRUE(SetUpLog("warn", "text").ok()); }
  ~CallNotesTest() override { StopServer(); }
  LogLines lines_{"call"};
};

TEST_F(CallNotesTest, ALineNamesTheRequestAndTheTraceOfItsMetadata) {
  StartServer();
  const auto context = [&] {
    auto out = client_->Context();
    out->AddMetadata("x-request-id", "r-7");
    out->AddMetadata("traceparent", kParent);
    return out;
  };
  v1::PinRequest pin;
  pin.set_space("nothing");
  v1::PinResponse pinned;
  EXPECT_FALSE(client_->kv().Pin(context().get(), pin, &pinned).ok());
  v1::LookupRequest lookup;
  lookup.set_space("nothing");
  v1::LookupResponse found;
  EXPECT_FALSE(client_->kv().Lookup(context().get(), lookup, &found).ok());
  const auto lines = lines_.Take();
  ASSERT_EQ(lines.size(), 2u);
  for (const auto& line : lines) {
    EXPECT_EQ(line["space"], "nothing");
    EXPECT_EQ(line["code"], "INVALID_ARGUMENT");
    EXPECT_EQ(line["request"], "r-7");
    EXPECT_EQ(line["trace"], "0af7651916cd43dd8448eb211c80319c");
    EXPECT_EQ(line["span"], "b7ad6b7169203331");
  }
  EXPECT_EQ(lines[0]["call"], "Pin");
  EXPECT_EQ(lines[1]["call"], "Lookup");
}

TEST_F(CallNotesTest, MetadataThatAreNoIdsStayOut) {
  StartServer();
  const auto context = client_->Context();
  context->AddMetadata("x-request-id", "forged\" line");
  context->AddMetadata("traceparent", "00-zz");
  v1::PinRequest pin;
  pin.set_space("nothing");
  v1::PinResponse pinned;
  EXPECT_FALSE(client_->kv().Pin(context.get(), pin, &pinned).ok());
  const auto lines = lines_.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_FALSE(lines[0].contains("request"));
  EXPECT_FALSE(lines[0].contains("trace"));
}

TEST_F(CallNotesTest, AClientNamesItsCallsAndTheirTrace) {
  StartServer();
  const std::unique_ptr<Client> client = Client::Connect(
      {.address = server_->address(), .traceparent = [] { return std::string(kParent); }});
  EXPECT_FALSE(client->FindSpace("nothing").ok());
  EXPECT_FALSE(client->Call("/kvstow.v1.KvCache/Pin", "").ok());
  const auto lines = lines_.Take();
  ASSERT_EQ(lines.size(), 1u) << "to ask for a space that is not there is no failing call";
  EXPECT_EQ(lines[0]["call"], "Pin");
  EXPECT_EQ(lines[0]["request"].get<std::string>().size(), 16u);
  EXPECT_EQ(lines[0]["trace"], "0af7651916cd43dd8448eb211c80319c");
}

TEST_F(CallNotesTest, ASlowCallGetsALine) {
  config_.slow_call = std::chrono::nanoseconds(1);
  StartServer();
  ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
  const auto lines = lines_.Take();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["call"], "OpenSpace");
  EXPECT_EQ(lines[0]["space"], "s");
  EXPECT_EQ(lines[0]["code"], "OK");
}

}  // namespace
}  // namespace kvstow::testing
