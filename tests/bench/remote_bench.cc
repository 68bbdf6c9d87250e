// RedisCluster beside a bare client: the same values from the same three nodes on loopback, in
// turn. The bare client is blocking hiredis, one connection a node, with all commands pipelined.
// Both run in one thread of this process, and the servers beside it. The bar is a ratio of .8.
#include <benchmark/benchmark.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "service/remote/redis_cluster.h"
#include "service/remote/redis_slots.h"
#include "tests/service/remote/test_cluster.h"

namespace kvstow {
namespace {

constexpr size_t kTotalBytes = 96 << 20;  // of all values
constexpr size_t kNamesOfCall = 8;        // of one call, as of a page's segments

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Time Soon() { return Clock::Real().Now() + std::chrono::seconds(60); }

class BareClient {
 public:
  explicit BareClient(TestCluster& cluster) {
    for (size_t i = 0; i < cluster.size(); ++i) {
      nodes_.emplace_back(redisConnect("127.0.0.1", cluster.node(i).port()), redisFree);
    }
  }
  // Returns how many values came.
  size_t Get(const std::vector<std::vector<std::string>>& names_of_nodes) {
    size_t most = 0, good = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const std::string& name : names_of_nodes[i]) {
        redisAppendCommand(nodes_[i].get(), "GET %b", name.data(), name.size());
      }
      int sent = 0;
      while (sent == 0) redisBufferWrite(nodes_[i].get(), &sent);
      most = std::max(most, names_of_nodes[i].size());
    }
    for (size_t at = 0; at < most; ++at) {
      for (size_t i = 0; i < nodes_.size(); ++i) {
        void* reply = nullptr;
        if (at >= names_of_nodes[i].size()) continue;
        if (redisGetReply(nodes_[i].get(), &reply) != REDIS_OK) std::abort();
        good += static_cast<redisReply*>(reply)->type == REDIS_REPLY_STRING ? 1 : 0;
        freeReplyObject(reply);
      }
    }
    return good;
  }

 private:
  std::vector<std::unique_ptr<redisContext, void (*)(redisContext*)>> nodes_;
};

// Calls of kNamesOfCall names, all at once. Returns how many values came.
size_t GetAll(RemoteStore& store, const std::vector<std::string>& names) {
  std::atomic<size_t> good{0}, calls{1};
  std::promise<void> all;
  const auto end = [&] {
    if (--calls == 0) all.set_value();
  };
  for (size_t at = 0; at < names.size(); at += kNamesOfCall) {
    ++calls;
    const auto first = names.begin() + static_cast<int64_t>(at);
    const auto last =
        names.begin() + static_cast<int64_t>(std::min(at + kNamesOfCall, names.size()));
    store.Get({first, last}, Soon(), [&](const auto& values) {
      for (const auto& value : values) good += value.ok() ? 1 : 0;
      end();
    });
  }
  end();
  all.get_future().wait();
  return good;
}

void PutAll(RemoteStore& store, const std::vector<std::string>& names, size_t bytes) {
  for (const std::string& name : names) {
    std::promise<absl::Status> done;
    std::string value(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) value[i] = static_cast<char>(i * 31 + i / 255);
    store.Put({{name, {SharedBytes::Take(std::move(value))}}}, Duration(0), Soon(),
              [&](std::vector<absl::Status> r) { done.set_value(r[0]); });
    if (!done.get_future().get().ok()) std::abort();
  }
}

void GetBesideABareClient(benchmark::State& state) {
  if (TestRedis::Program().empty()) return state.SkipWithError("no redis-server here");
  const auto bytes = static_cast<size_t>(state.range(0));
  TestCluster cluster({}, 3, 0);
  auto store = OpenRedis({.seeds = cluster.seeds()});
  if (!cluster.ready() || !store.ok()) return state.SkipWithError("no cluster");
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> of_nodes(3);
  for (size_t i = 0; i < kTotalBytes / bytes; ++i) {
    names.push_back("page " + std::to_string(i));
    of_nodes[static_cast<size_t>(cluster.PrimaryOf(RedisSlotOf(names[i]), 0))].push_back(names[i]);
  }
  PutAll(**store, names, bytes);
  BareClient bare(cluster);
  const auto seconds_of = [&](const auto& get) {
    const auto begin = std::chrono::steady_clock::now();
    if (get() != names.size()) std::abort();
    return SecondsSince(begin);
  };
  std::vector<double> ours, theirs;
  for (auto _ : state) {
    theirs.push_back(seconds_of([&] { return bare.Get(of_nodes); }));
    ours.push_back(seconds_of([&] { return GetAll(**store, names); }));
  }
  const double total = static_cast<double>(names.size() * bytes) / 1e9;
  state.counters["GBps"] = total / Median(ours);
  state.counters["GBps_bare"] = total / Median(theirs);
  state.counters["ratio"] = Median(theirs) / Median(ours);
}
BENCHMARK(GetBesideABareClient)
    ->Name("remote/get")
    ->Arg(256 << 10)
    ->Arg(1 << 20)
    ->Iterations(20)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace kvstow
