// The token of a client: where it comes from, and where it never goes.
#include "client/connection/bearer_token.h"

#include <gmock/gmock.h>
#include <grpcpp/test/client_context_test_peer.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

class BearerTokenTest : public ::testing::Test {
 protected:
  ~BearerTokenTest() override { std::filesystem::remove(file_); }
  // Atomically, as an operator should.
  void Write(const std::string& text) const {
    std::ofstream(file_ + ".new") << text;
    ASSERT_EQ(rename((file_ + ".new").c_str(), file_.c_str()), 0);
  }
  static std::string Sent(BearerToken& token) {
    grpc::ClientContext context;
    token.AddTo(context);
    const auto sent = grpc::testing::ClientContextTestPeer(&context).GetSendInitialMetadata();
    const auto it = sent.find("authorization");
    return it == sent.end() ? "" : it->second;
  }
  static std::string Error(const ClientOptions& options) {
    return std::string(CheckToken(options).message());
  }

  const std::string file_ = ::testing::TempDir() + "kvstow_token_" + std::to_string(getpid());
};

TEST_F(BearerTokenTest, AFileIsReadAgainWhenItChangesAndKeptWhenItGoes) {
  Write("first\n");
  const ClientOptions options{.token_file = file_};
  ASSERT_TRUE(CheckToken(options).ok()) << CheckToken(options);
  BearerToken token(options);
  EXPECT_EQ(Sent(token), "Bearer first");
  Write("second");
  EXPECT_EQ(Sent(token), "Bearer second");
  Write("two words");
  EXPECT_EQ(Sent(token), "Bearer second") << "what is no token replaces none";
  std::filesystem::remove(file_);
  EXPECT_EQ(Sent(token), "Bearer second");
}

TEST_F(BearerTokenTest, WithoutATokenNothingIsSent) {
  const ClientOptions options;
  BearerToken token(options);
  EXPECT_TRUE(CheckToken(options).ok());
  EXPECT_EQ(Sent(token), "");
}

TEST_F(BearerTokenTest, NeverGoesOverANetworkInTheClear) {
  for (const char* address : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/x"}) {
    EXPECT_EQ(Error({.address = address, .token = "t"}), "") << address;
  }
  for (const char* address :
       {"10.0.0.1:1", "example.org:1", "127.example.org:1", "[::2]:1", "localhost.example.org:1"}) {
    EXPECT_THAT(Error({.address = address, .token = "t"}), HasSubstr("not encrypted")) << address;
    EXPECT_EQ(Error({.address = address, .tls = {.ca = "ca.pem"}, .token = "t"}), "") << address;
  }
}

TEST_F(BearerTokenTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({.token = "t", .token_file = "f"}), HasSubstr("not both"));
  EXPECT_THAT(Error({.token = "a b"}), HasSubstr("token: a token has 1 to"));
  EXPECT_THAT(Error({.token = std::string(5000, 'x')}), HasSubstr("token: a token has 1 to"));
  EXPECT_THAT(Error({.token_file = "/nowhere/token"}), HasSubstr("/nowhere/token cannot be read"));
  Write("\n");
  EXPECT_THAT(Error({.token_file = file_}), HasSubstr(file_));
}

}  // namespace
}  // namespace kvstow::testing
