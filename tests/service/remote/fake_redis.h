// A server in the test's process that speaks RESP as a script tells it.
//
// It listens on a free port of loopback. For each command it asks the script what to answer, as raw
// bytes: so a test lies, cuts off, or keeps silent. Not given to the script are PING and READONLY,
// which it answers well, unless the test wants them (`Options::raw`). The script runs on the
// server's thread.
#ifndef KVSTOW_TESTS_SERVICE_REMOTE_FAKE_REDIS_H_
#define KVSTOW_TESTS_SERVICE_REMOTE_FAKE_REDIS_H_

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace kvstow {

class FakeRedis {
 public:
  using Words = std::vector<std::string>;
  struct Said {
    std::string bytes;     // what it answers
    bool hang_up = false;  // afterwards
  };
  using Script = std::function<Said(const Words& words)>;

  explicit FakeRedis(Script script, bool raw = false);
  ~FakeRedis();

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }
  int commands() const { return commands_; }  // that the script was asked

  static std::string Bulk(const std::string& text) {
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  }
  // What CLUSTER SLOTS says when all slots are at `port`.
  static std::string AllSlotsAt(int port) {
    return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" + Bulk("127.0.0.1") + ":" + std::to_string(port) +
           "\r\n";
  }

 private:
  void Run();
  bool Serve(int descriptor, std::string& pending);

  const Script script_;
  const bool raw_;
  int listener_ = -1, port_ = 0;
  int stop_[2] = {-1, -1};
  std::atomic<int> connections_{0}, commands_{0};
  std::map<int, std::string> clients_;  // by descriptor: what came of a command
  std::thread thread_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_SERVICE_REMOTE_FAKE_REDIS_H_
