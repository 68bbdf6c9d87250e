// Two servers over a real Redis Cluster, against one model of what may come back, while the cluster
// fails in every way that it knows: processes die and stand still, slots move, values are lost,
// damaged and swapped, memory is full, and one server is cut off.
//
// Each page that is read must be the very page, or a miss. Pages that a server has pinned stay hits
// on it. No call fails or outlives its deadline. CI reads some thousands of pages; the label slow
// has a million (KVSTOW_TWO_NODES_READS).
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "service/remote/redis_cluster.h"
#include "service/remote/redis_slots.h"
#include "tests/service/remote/test_cluster.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

constexpr int kPages = 3000, kPinned = 8;  // pages that both servers read; more, that each pins
constexpr int kBatch = 8;

int64_t ReadsToDo() {
  const char* const text = std::getenv("KVSTOW_TWO_NODES_READS");
  return text == nullptr ? 4'000 : std::atoll(text);
}

// A server's end of the cluster, which can be cut: then nothing arrives, and each call ends at its
// deadline.
class Cuttable final : public RemoteStore {
 public:
  explicit Cuttable(std::unique_ptr<RemoteStore> store)
      : store_(std::move(store)), ticker_([this] { Tick(); }) {}
  ~Cuttable() override {
    {
      MutexLock lock(mu_);
      stop_ = true;
      changed_.NotifyAll();
    }
    ticker_.join();
  }
  void Cut(bool cut) { cut_ = cut; }

  std::string name() const override { return store_->name(); }
  bool holds_values() const override { return true; }
  void Get(std::vector<std::string> names, Time deadline, GetDone done) override {
    if (!cut_) return store_->Get(std::move(names), deadline, std::move(done));
    const size_t n = names.size();
    Hold(deadline, [n, done = std::move(done)] {
      done(std::vector<absl::StatusOr<SharedBytes>>(n, absl::DeadlineExceededError("cut off")));
    });
  }
  void Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) override {
    if (!cut_) return store_->Put(std::move(values), ttl, deadline, std::move(done));
    Lose(values.size(), deadline, std::move(done));
  }
  void Exists(std::vector<std::string> names, Time deadline, Done done) override {
    if (!cut_) return store_->Exists(std::move(names), deadline, std::move(done));
    Lose(names.size(), deadline, std::move(done));
  }
  void Erase(std::vector<std::string> names, Time deadline, Done done) override {
    if (!cut_) return store_->Erase(std::move(names), deadline, std::move(done));
    Lose(names.size(), deadline, std::move(done));
  }
  Counters counters() const override { return store_->counters(); }

 private:
  void Lose(size_t n, Time deadline, Done done) {
    Hold(deadline, [n, done = std::move(done)] {
      done(std::vector<absl::Status>(n, absl::DeadlineExceededError("cut off")));
    });
  }
  void Hold(Time deadline, std::function<void()> end) {
    MutexLock lock(mu_);
    held_.emplace(deadline, std::move(end));
    changed_.NotifyAll();
  }
  void Tick() {
    for (;;) {
      std::function<void()> end;
      {
        MutexLock lock(mu_);
        while (!stop_ && held_.empty()) changed_.Wait(mu_);
        if (held_.empty()) return;
        const Time due = held_.begin()->first;
        if (const Time now = Clock::Real().Now(); !stop_ && now < due) {
          changed_.WaitFor(mu_, due - now);
          continue;
        }
        end = std::move(held_.begin()->second);
        held_.erase(held_.begin());
      }
      end();
    }
  }

  const std::unique_ptr<RemoteStore> store_;
  std::atomic<bool> cut_ = false;
  Mutex mu_;
  CondVar changed_;
  std::multimap<Time, std::function<void()>> held_ KVSTOW_GUARDED_BY(mu_);
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread ticker_;
};

std::string KeyOf(int page) { return absl::StrCat("page-", page); }
// All pages: made once, as most of the time would go into them.
const PageIn& PageAt(int page) {
  static const std::vector<PageIn>* const kAll = [] {
    auto* const all = new std::vector<PageIn>;
    const KvSpec spec = SmallSpec();
    for (int i = 0; i < kPages + 2 * kPinned; ++i) {
      all->push_back({.key = KeyOf(i),
                      .raw = RandomPage(spec, spec.page_tokens, static_cast<uint32_t>(i + 1)),
                      .tokens = spec.page_tokens,
                      .first_position = uint64_t{spec.page_tokens} * static_cast<uint64_t>(i)});
    }
    return all;
  }();
  return (*kAll)[static_cast<size_t>(page)];
}

// One worker of a server.
class Worker {
 public:
  explicit Worker(const std::string& address) : client_(address) {
    EXPECT_TRUE(client_.OpenSpace("s", "raw").ok());
  }
  void Put(int first, int count) {
    std::vector<PageIn> pages;
    for (int i = 0; i < count; ++i) pages.push_back(PageAt(first + i));
    for (const v1::PutResult& put : client_.Put("s", pages).pages) {
      EXPECT_TRUE(put.status() == v1::STORED || put.status() == v1::ALREADY_THERE) << put.message();
    }
  }
  void Pin(int first, int count) {
    v1::OpenSpaceResponse opened;
    EXPECT_TRUE(client_.FindSpace("s", &opened).ok());
    v1::PinRequest pin;
    pin.set_space("s");
    pin.set_fingerprint(opened.fingerprint());
    for (int i = 0; i < count; ++i) pin.add_keys(KeyOf(first + i));
    v1::PinResponse pinned;
    EXPECT_TRUE(client_.kv().Pin(client_.Context().get(), pin, &pinned).ok());
  }
  // Reads the leading ones of these pages that a look-up finds. Returns how many came.
  int Read(int first, int count) {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(KeyOf(first + i));
    return Get(first, static_cast<int>(client_.Lookup("s", keys, false).pages()));
  }
  int Get(int first, int count) {
    std::vector<v1::GetPage> asked;
    for (int i = 0; i < count; ++i) asked.push_back(Ask(KeyOf(first + i)));
    if (asked.empty()) return 0;
    int came = 0;
    const auto answer = client_.Get("s", asked);
    EXPECT_EQ(answer.pages.size(), asked.size());
    for (size_t i = 0; i < answer.pages.size(); ++i) {
      const PageOut& page = answer.pages[i];
      if (page.reply.status() != v1::HIT) {
        EXPECT_EQ(page.reply.status(), v1::MISS) << page.reply.message();
        continue;
      }
      ++came;
      EXPECT_TRUE(page.data == PageAt(first + static_cast<int>(i)).raw) << first << " + " << i;
    }
    return came;
  }

 private:
  WireClient client_;
};

// A server, which has pinned some pages.
class Node {
 public:
  Node(const std::vector<std::string>& seeds, int pinned) : pinned_(pinned) {
    Config config;
    config.listen = "127.0.0.1:0";
    config.http_listen = "off";
    config.host_bytes = 300 * PageAt(0).raw.size();  // few of the pages: they come and go
    config.log_level = "error";
    ServerOptions options;
    options.open_remote = [&] {
      auto remote = std::make_unique<Cuttable>(OpenRedis({.seeds = seeds}).value());
      remote_ = remote.get();
      return remote;
    };
    server_ = Server::Start(config, options).value();
    Worker worker(server_->address());
    worker.Put(pinned_, kPinned);
    worker.Pin(pinned_, kPinned);
  }
  const std::string& address() const { return server_->address(); }
  int pinned() const { return pinned_; }
  void Cut(bool cut) { remote_->Cut(cut); }
  // Pages that came from the cluster.
  int64_t fetched() const {
    return static_cast<int64_t>(server_->remote().counters().fetched_pages.load());
  }

 private:
  const int pinned_;  // the first of the pages
  Cuttable* remote_ = nullptr;
  std::unique_ptr<Server> server_;
};

// What happens to the cluster, one thing after the other, until it is told to stop.
class Chaos {
 public:
  Chaos(TestCluster& cluster, Node& cut, const std::atomic<int64_t>& reads)
      : cluster_(cluster), cut_(cut), reads_(reads) {}
  // Between two events there are so many reads.
  void Run(int64_t calm, const std::atomic<bool>& stop) {
    for (int event = 0; !stop || event < kEvents; ++event) {
      const int64_t until = reads_ + calm;
      EXPECT_TRUE(::kvstow::Eventually([&] { return stop || reads_ >= until; }, /*seconds=*/300));
      switch (event % kEvents) {
        case 0:
          TakeOver([](TestRedis& primary) { primary.Kill(); });
          break;
        case 1:
          Spoil();
          break;
        case 2:
          cluster_.node(3 + random_() % 3).Kill();
          break;
        case 3:
          MoveASlot();
          break;
        case 4:
          TakeOver([](TestRedis& primary) { primary.Signal(SIGSTOP); });
          break;
        case 5:
          cut_.Cut(true);
          Spoil();
          Fill();
          cut_.Cut(false);
          break;
        default:
          cluster_.FlushAll();
      }
      EXPECT_TRUE(cluster_.Heal()) << "after event " << event;
      ++events_;
    }
  }
  int events() const { return events_; }

  static constexpr int kEvents = 7;

 private:
  // Hurts a primary, and waits until another one has its slots.
  void TakeOver(const std::function<void(TestRedis&)>& hurt) {
    const auto slot = static_cast<uint16_t>(random_() % 16384);
    const int primary = cluster_.PrimaryOf(slot, 0);
    if (primary < 0) return;
    const size_t other = primary == 1 ? 2 : 1;
    hurt(cluster_.node(static_cast<size_t>(primary)));
    EXPECT_TRUE(::kvstow::Eventually([&] {
      const int now = cluster_.PrimaryOf(slot, other);
      return now >= 0 && now != primary;
    }));
  }
  // Damages some values, and swaps others.
  void Spoil() {
    for (int i = 0; i < 200; ++i) {
      const TestRedis& node = cluster_.node(random_() % cluster_.size());
      const std::string a = node.AskText({"RANDOMKEY"}), b = node.AskText({"RANDOMKEY"});
      std::string value = node.AskText({"GET", a});
      if (value.empty()) continue;
      if (random_() % 2 == 0) {
        value[random_() % value.size()] ^= 1;
      } else {
        value = node.AskText({"GET", b});
      }
      node.Ask({"SET", a, value, "KEEPTTL"});
    }
  }
  void MoveASlot() {
    const auto slot = static_cast<uint16_t>(random_() % 16384);
    const int from = cluster_.PrimaryOf(slot, 0);
    const int to = cluster_.PrimaryOf(static_cast<uint16_t>((slot + 6000) % 16384), 0);
    if (from < 0 || to < 0 || from == to || !cluster_.BeginMove(slot, from, to)) return;
    EXPECT_TRUE(cluster_.MoveNames(slot, from, to));
    EXPECT_TRUE(cluster_.EndMove(slot, from, to));
  }
  // Fills the memory of all, so that pages are evicted.
  void Fill() {
    const std::string much(1 << 20, 'x');
    for (int i = 0; i < 30; ++i) {
      for (size_t n = 0; n < cluster_.size(); ++n) {
        cluster_.node(n).Ask({"SET", absl::StrCat("filler", i), much, "EX", "3"});
      }
    }
  }

  TestCluster& cluster_;
  Node& cut_;
  const std::atomic<int64_t>& reads_;
  std::mt19937 random_{5};
  int events_ = 0;
};

// Reads until it is told to stop, and puts what is missing.
void Work(const Node& node, uint32_t seed, std::atomic<int64_t>& reads,
          const std::atomic<bool>& stop) {
  Worker worker(node.address());
  std::mt19937 random{seed};
  while (!stop && !::testing::Test::HasFailure()) {
    // Some prompts are asked for more often than others.
    const uint32_t batches = kPages / kBatch;
    const int first = kBatch * static_cast<int>(random() % (random() % batches + 1));
    const int came = worker.Read(first, kBatch);
    if (came < kBatch) worker.Put(first + came, kBatch - came);
    reads += came;
    if (random() % 16 > 0) continue;
    EXPECT_EQ(worker.Get(node.pinned(), kPinned), kPinned) << "pinned pages are here";
    reads += kPinned;
  }
}

TEST(TwoNodesTest, EveryReadIsThePageOrAMissWhateverHappensToTheCluster) {
  if (TestRedis::Program().empty()) GTEST_SKIP() << "apt install redis-tools";
  TestCluster cluster({"--maxmemory", "24mb", "--maxmemory-policy", "volatile-lru"});
  ASSERT_TRUE(cluster.ready());
  Node a(cluster.seeds(), kPages), b(cluster.seeds(), kPages + kPinned);
  std::atomic<int64_t> reads = 0;
  std::atomic<bool> enough = false, over = false;
  std::vector<std::thread> workers;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    Node& node = seed % 2 == 0 ? a : b;
    workers.emplace_back([&, seed] { Work(node, seed, reads, over); });
  }
  Chaos chaos(cluster, b, reads);
  std::thread trouble([&] { chaos.Run(ReadsToDo() / 40, enough); });
  EXPECT_TRUE(::kvstow::Eventually([&] { return reads >= ReadsToDo() || HasFailure(); }, 3600));
  enough = true;
  trouble.join();
  over = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_GE(reads, ReadsToDo());
  EXPECT_GT(a.fetched() + b.fetched(), reads / 100);
  EXPECT_GE(chaos.events(), Chaos::kEvents);
  RecordProperty("reads", static_cast<int>(reads));
  RecordProperty("fetched", static_cast<int>(a.fetched() + b.fetched()));
  RecordProperty("events", chaos.events());
}

}  // namespace
}  // namespace kvstow::testing
