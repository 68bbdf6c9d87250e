#include "tests/service/remote/shared_cluster.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kvstow {
namespace {

std::unique_ptr<TestCluster> shared_cluster;

class StopCluster final : public ::testing::Environment {
 public:
  void TearDown() override { shared_cluster = nullptr; }
};
::testing::Environment* const stop_cluster = ::testing::AddGlobalTestEnvironment(new StopCluster);

}  // namespace

TestCluster& SharedCluster() {
  if (shared_cluster == nullptr) {
    shared_cluster =
        std::make_unique<TestCluster>(std::vector<std::string>{"--maxmemory", "100mb"});
    EXPECT_TRUE(shared_cluster->ready());
  }
  return *shared_cluster;
}

}  // namespace kvstow
