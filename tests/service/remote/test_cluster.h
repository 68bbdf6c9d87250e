// A Redis Cluster on loopback for tests: three primaries with a replica each, or one single Redis.
//
// The servers are real processes on free ports, without persistence, in a folder of their own. They
// go with the object. Their program is redis-server, or redis-check-rdb (Debian's redis-tools),
// which is the same program under another name; without either there is no cluster. It needs no
// GoogleTest: its methods say whether they worked.
#ifndef KVSTOW_TESTS_SERVICE_REMOTE_TEST_CLUSTER_H_
#define KVSTOW_TESTS_SERVICE_REMOTE_TEST_CLUSTER_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "service/remote/redis_reply.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {

// Polls until `condition` holds; false when it does not within `seconds`.
bool Eventually(const std::function<bool()>& condition, int seconds = 10);

// One server's process.
class TestRedis {
 public:
  // Returns the path of the servers' program; "" when there is none here.
  static std::string Program();

  static int FreePort();
  // Starts a server on a free port. `arguments` are as "--maxmemory 10mb".
  TestRedis(std::string folder, std::vector<std::string> arguments);
  ~TestRedis();
  TestRedis(const TestRedis&) = delete;
  TestRedis& operator=(const TestRedis&) = delete;

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  bool alive() const { return pid_ > 0; }
  bool Answers() const;
  void Kill();              // SIGKILL
  void Start();             // again, on its port
  void Signal(int signal);  // SIGSTOP, SIGCONT

  // Sends one command on a connection of its own; an error reply says what failed.
  RedisReply Ask(const std::vector<std::string>& words, const std::string& password = "") const;
  std::string AskText(const std::vector<std::string>& words) const {
    return std::string(Ask(words).view());
  }

 private:
  const std::string folder_;
  const std::vector<std::string> arguments_;
  int port_ = 0;
  pid_t pid_ = -1;
};

class TestCluster {
 public:
  // Waits until the cluster is ok. Look at ready().
  explicit TestCluster(std::vector<std::string> arguments = {}, int primaries = 3,
                       int replicas = 3);

  bool ready() const { return ready_; }
  std::vector<std::string> seeds() const;
  TestRedis& node(size_t i) { return *nodes_[i]; }
  size_t size() const { return nodes_.size(); }
  // Which node is the primary of a slot now, as node `asked` sees it; -1 = none.
  int PrimaryOf(uint16_t slot, size_t asked);
  std::vector<int> ReplicasOf(uint16_t slot, size_t asked);
  // Begins to move a slot, moves its names, and ends it. False when a server refuses.
  bool BeginMove(uint16_t slot, int from, int to);
  bool MoveNames(uint16_t slot, int from, int to);
  bool EndMove(uint16_t slot, int from, int to);
  void FlushAll();
  // Waits until the replicas have what their primaries have now.
  bool CatchUp();
  // Makes all as it was: starts and resumes what is down, and waits until the cluster is ok.
  bool Heal();

 private:
  bool AllOk();
  std::string IdOf(int i) { return nodes_[static_cast<size_t>(i)]->AskText({"CLUSTER", "MYID"}); }

  const size_t replicas_;
  TempDir folder_;
  std::vector<std::unique_ptr<TestRedis>> nodes_;
  bool ready_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_SERVICE_REMOTE_TEST_CLUSTER_H_
