#include "tests/service/remote/test_cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "service/remote/redis_connection.h"
#include "service/remote/redis_slots.h"

namespace kvstow {
namespace {

constexpr int kPatienceMs = 3000;

sockaddr_in Loopback(int port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(static_cast<uint16_t>(port));
  return out;
}

bool CanListen(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

std::string FindProgram(const std::string& name) {
  const char* const path = getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

RedisReply Error(const std::string& what) {
  return {.kind = RedisReply::Kind::kError, .text = "TEST " + what};
}

// Sends all, and reads `count` replies.
std::vector<RedisReply> Exchange(int port, const std::string& bytes, size_t count) {
  std::vector<RedisReply> replies;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  RedisReplyReader reader;
  const bool there =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  std::array<uint8_t, 65536> buffer;
  while (there && replies.size() < count) {
    pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&waits, 1, kPatienceMs) <= 0) break;
    const ssize_t came = recv(fd, buffer.data(), buffer.size(), 0);
    if (came <= 0) break;
    if (!reader.Feed({buffer.data(), static_cast<size_t>(came)}, replies).ok()) break;
  }
  close(fd);
  while (replies.size() < count) replies.push_back(Error("no answer"));
  return replies;
}

std::string Encode(const std::vector<std::string>& words) {
  const std::vector<absl::string_view> views(words.begin(), words.end());
  return RedisCommandOf(views).head;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// A port below those that the system gives to clients, so that a server that comes back finds it
// free. The cluster's bus has the port 10000 above.
int TestRedis::FreePort() {
  static int next = 10'000 + getpid() % 5000;
  for (int tries = 0; tries < 5000; ++tries) {
    next = next >= 15'000 ? 10'000 : next + 1;
    if (CanListen(next) && CanListen(next + 10'000)) return next;
  }
  return 0;
}

std::string TestRedis::Program() {
  static const std::string program = [] {
    std::string found = FindProgram("redis-server");
    return found.empty() ? FindProgram("redis-check-rdb") : found;
  }();
  return program;
}

TestRedis::TestRedis(std::string folder, std::vector<std::string> arguments)
    : folder_(std::move(folder)), arguments_(std::move(arguments)), port_(FreePort()) {
  std::filesystem::create_directories(folder_);
  Start();
}

TestRedis::~TestRedis() { Kill(); }

void TestRedis::Start() {
  if (alive()) return;
  std::vector<std::string> words = {"redis-server",
                                    "--port",
                                    std::to_string(port_),
                                    "--bind",
                                    "127.0.0.1",
                                    "--dir",
                                    folder_,
                                    "--save",
                                    "",
                                    "--appendonly",
                                    "no",
                                    "--logfile",
                                    folder_ + "/log",
                                    "--repl-diskless-sync-delay",
                                    "0"};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string program = Program();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // when the test dies
  if (getppid() != parent) _exit(1);
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(null, fd);
  execv(program.c_str(), argv.data());
  _exit(127);
}

void TestRedis::Kill() {
  if (!alive()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void TestRedis::Signal(int signal) {
  if (alive()) kill(pid_, signal);
}

bool TestRedis::Answers() const {
  const RedisReply reply = Ask({"PING"});
  return reply.text == "PONG" || absl::StartsWith(reply.text, "NOAUTH");
}

RedisReply TestRedis::Ask(const std::vector<std::string>& words,
                          const std::string& password) const {
  if (password.empty()) return Exchange(port_, Encode(words), 1)[0];
  return Exchange(port_, Encode({"AUTH", password}) + Encode(words), 2)[1];
}

TestCluster::TestCluster(std::vector<std::string> arguments, int primaries, int replicas)
    : replicas_(static_cast<size_t>(replicas)) {
  arguments.insert(arguments.begin(),
                   {"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
                    "--repl-ping-replica-period", "1", "--cluster-node-timeout", "1000",
                    "--cluster-replica-validity-factor", "0", "--hz", "50"});
  for (int i = 0; i < primaries + replicas; ++i) {
    nodes_.push_back(std::make_unique<TestRedis>(absl::StrCat(folder_.path(), "/", i), arguments));
  }
  for (const auto& node : nodes_) {
    if (!Eventually([&] { return node->Answers(); })) return;
  }
  for (int i = 0; i < primaries; ++i) {
    const int first = kRedisSlots * i / primaries, last = kRedisSlots * (i + 1) / primaries - 1;
    node(i).Ask({"CLUSTER", "ADDSLOTSRANGE", absl::StrCat(first), absl::StrCat(last)});
    node(i).Ask({"CLUSTER", "SET-CONFIG-EPOCH", absl::StrCat(i + 1)});
  }
  for (size_t i = 1; i < size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      node(i).Ask({"CLUSTER", "MEET", "127.0.0.1", absl::StrCat(node(j).port())});
    }
  }
  for (int i = 0; i < replicas; ++i) {
    const std::string id = IdOf(i % primaries);
    const auto follow = [&] {
      return node(primaries + i).Ask({"CLUSTER", "REPLICATE", id}).text == "OK";
    };
    if (!Eventually(follow)) return;
  }
  ready_ = Eventually([&] { return AllOk(); }, 20);
}

bool TestCluster::AllOk() {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    if (!absl::StrContains(node->AskText({"CLUSTER", "INFO"}), "cluster_state:ok")) return false;
    const std::string role = node->AskText({"INFO", "replication"});
    const bool linked =
        absl::StrContains(role, "role:master") || absl::StrContains(role, "master_link_status:up");
    const std::string all = node->AskText({"CLUSTER", "NODES"});
    size_t known = 0, replicas = 0;
    // A replica is in the map once the node knows how far it is.
    const auto map = RedisSlotMap::Parse(node->Ask({"CLUSTER", "SLOTS"}), "127.0.0.1");
    if (!map.ok()) return false;
    for (const RedisShard& shard : map->shards()) replicas += shard.replicas.size();
    for (const absl::string_view line : absl::StrSplit(all, '\n')) {
      if (absl::StrContains(line, "fail") || absl::StrContains(line, "handshake")) return false;
      known += line.empty() ? 0 : 1;
    }
    return linked && known == size() && replicas == replicas_;
  });
}

std::vector<std::string> TestCluster::seeds() const {
  std::vector<std::string> out;
  for (const auto& node : nodes_) out.push_back(node->address());
  return out;
}

int TestCluster::PrimaryOf(uint16_t slot, size_t asked) {
  const auto map = RedisSlotMap::Parse(node(asked).Ask({"CLUSTER", "SLOTS"}), "127.0.0.1");
  if (!map.ok() || map->Find(slot) == nullptr) return -1;
  for (size_t i = 0; i < size(); ++i) {
    if (node(i).port() == map->Find(slot)->primary.port) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int> TestCluster::ReplicasOf(uint16_t slot, size_t asked) {
  std::vector<int> out;
  const auto map = RedisSlotMap::Parse(node(asked).Ask({"CLUSTER", "SLOTS"}), "127.0.0.1");
  if (!map.ok() || map->Find(slot) == nullptr) return out;
  for (const RedisAddress& replica : map->Find(slot)->replicas) {
    for (size_t i = 0; i < size(); ++i) {
      if (node(i).port() == replica.port) out.push_back(static_cast<int>(i));
    }
  }
  return out;
}

bool TestCluster::BeginMove(uint16_t slot, int from, int to) {
  const std::string number = absl::StrCat(slot);
  return node(to).Ask({"CLUSTER", "SETSLOT", number, "IMPORTING", IdOf(from)}).text == "OK" &&
         node(from).Ask({"CLUSTER", "SETSLOT", number, "MIGRATING", IdOf(to)}).text == "OK";
}

bool TestCluster::MoveNames(uint16_t slot, int from, int to) {
  for (;;) {
    const RedisReply names =
        node(from).Ask({"CLUSTER", "GETKEYSINSLOT", absl::StrCat(slot), "100"});
    if (names.elements.empty()) return !names.is_error();
    for (const RedisReply& name : names.elements) {
      const RedisReply moved =
          node(from).Ask({"MIGRATE", "127.0.0.1", absl::StrCat(node(to).port()), name.text, "0",
                          "5000", "REPLACE"});
      if (moved.is_error()) return false;
    }
  }
}

bool TestCluster::EndMove(uint16_t slot, int from, int to) {
  const std::string id = IdOf(to);
  return node(to).Ask({"CLUSTER", "SETSLOT", absl::StrCat(slot), "NODE", id}).text == "OK" &&
         node(from).Ask({"CLUSTER", "SETSLOT", absl::StrCat(slot), "NODE", id}).text == "OK";
}

void TestCluster::FlushAll() {
  for (const auto& node : nodes_) node->Ask({"FLUSHALL"});
}

bool TestCluster::CatchUp() {
  const auto field = [](const std::string& info, absl::string_view name) {
    const size_t at = info.find(absl::StrCat("\n", name, ":"));
    return at == std::string::npos ? -1 : std::atoll(info.c_str() + at + name.size() + 2);
  };
  std::map<long long, long long> offset_of;  // of a primary, by port
  for (const auto& node : nodes_) {
    offset_of[node->port()] = field(node->AskText({"INFO", "replication"}), "master_repl_offset");
  }
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    return Eventually([&] {
      const std::string info = node->AskText({"INFO", "replication"});
      const auto primary = field(info, "master_port");
      return primary < 0 || field(info, "slave_repl_offset") >= offset_of[primary];
    });
  });
}

bool TestCluster::Heal() {
  for (const auto& node : nodes_) {
    node->Signal(SIGCONT);
    node->Start();
  }
  return Eventually([&] { return AllOk(); }, 30);
}

}  // namespace kvstow
