// The cluster of six processes that all tests of one program share, because a new one takes two
// seconds before it serves. Each test heals it. It stops before main() returns.
#ifndef KVSTOW_TESTS_SERVICE_REMOTE_SHARED_CLUSTER_H_
#define KVSTOW_TESTS_SERVICE_REMOTE_SHARED_CLUSTER_H_

#include "tests/service/remote/test_cluster.h"

namespace kvstow {

inline constexpr char kNoRedis[] =
    "no redis-server and no redis-check-rdb here: apt install redis-tools";

// Starts the cluster at the first call. Call it only where TestRedis::Program() names one.
TestCluster& SharedCluster();

}  // namespace kvstow

#endif  // KVSTOW_TESTS_SERVICE_REMOTE_SHARED_CLUSTER_H_
