// What the tests of gets share: a server with ten pages, in a space of raw and in one of int8.
#ifndef KVSTOW_TESTS_SERVICE_TRANSPORTS_GET_FIXTURE_H_
#define KVSTOW_TESTS_SERVICE_TRANSPORTS_GET_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/service/server_fixture.h"

namespace kvstow::testing {

inline constexpr size_t kPageBytes = 131072;

class GetTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    ASSERT_TRUE(client_->OpenSpace("s", "raw").ok());
    ASSERT_TRUE(client_->OpenSpace("lossy", "int8").ok());
    for (uint32_t i = 0; i < 10; ++i) {
      const uint32_t tokens = i == 9 ? 17 : 64;
      pages_.push_back({.key = "p" + std::to_string(i),
                        .raw = RandomPage(SmallSpec(), tokens, i),
                        .tokens = tokens,
                        .first_position = 64 * i});
    }
    for (const char* space : {"s", "lossy"}) {
      const auto put = client_->Put(space, pages_);
      ASSERT_TRUE(put.status.ok()) << put.status.error_message();
      for (const auto& result : put.pages) ASSERT_EQ(result.status(), v1::STORED);
    }
  }
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (const PageIn& p : pages_) keys.push_back(p.key);
    return keys;
  }
  std::vector<PageIn> pages_;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_TRANSPORTS_GET_FIXTURE_H_
