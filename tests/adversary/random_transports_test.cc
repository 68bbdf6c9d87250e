// All transports at once, at random, against one model of what may come back: puts, gets of
// whole pages and of some layers, lookups and deletes, while the server restarts, its disk is
// damaged, its budgets shrink, and another model takes the name of a space and its keys.
//
// Every hit is compared with the content that was put. Prints its seed: KVSTOW_SEED=N runs it
// again, KVSTOW_TRANSPORT_READS=N sets how many hits are verified.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/page/convert.h"
#include "tests/client/transport/gpu_fixture.h"
#include "tests/storage/number_from_env.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokens = 16;
constexpr int kKeys = 40;
constexpr int kThreads = std::size(kClientWays);
constexpr std::array kSpaces = {std::pair{"exact", "raw"}, std::pair{"packed", "lossless"},
                                std::pair{"lossy", "hot=int8,cold=rotated8"}};
constexpr size_t kLossy = 2;

KvSpec SpecOf(const std::string& revision) {
  KvSpec spec = SmallSpec();
  spec.revision = revision;
  spec.page_tokens = kTokens;
  return spec;
}

// Finite F16 numbers that say whose they are: others for each revision, space, key and version.
std::vector<uint8_t> PageOf(char revision, size_t space, int key, int version) {
  uint64_t x = 0x9E3779B97F4A7C15u * (1 + static_cast<uint64_t>(revision)) +
               0xBF58476D1CE4E5B9u * (1 + space * kKeys + static_cast<uint64_t>(key)) +
               0x94D049BB133111EBu * (1 + static_cast<uint64_t>(version));
  std::vector<uint8_t> page(PageBytes(SpecOf("a"), kTokens));
  for (size_t i = 0; i < page.size(); i += 2) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    page[i] = static_cast<uint8_t>(x >> 24);
    page[i + 1] = static_cast<uint8_t>(0x38 | (x >> 16 & 0x83));  // about +-0.5..2
  }
  return page;
}

double RelativeError(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  std::vector<float> x(a.size() / 2), y(x.size());
  if (!LoadFloats(DType::kF16, a.data(), x.size(), x.data()) ||
      !LoadFloats(DType::kF16, b.data(), y.size(), y.data())) {
    return INFINITY;
  }
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    energy += x[i] * x[i];
  }
  return error / energy;
}

// What may come back of one key: a version from `oldest` to `newest`. A delete that was
// acknowledged raises `oldest`.
struct Truth {
  std::mutex mu;
  int oldest = 1, newest = 1;
};

class RandomTransportsTest : public GpuPagesTest {
 protected:
  struct Worker {
    std::mt19937_64 random;
    std::unique_ptr<Client> client;
    std::unique_ptr<PageBuffer> buffer;  // null: memory of its own
    std::vector<std::vector<uint8_t>> own;
    const ClientWay* way = nullptr;
    int index = 0;
    uint64_t Below(uint64_t n) { return random() % n; }
  };
  // A page that was asked for.
  struct Asked {
    int key = 0;
    int oldest = 0;  // when it was asked for
    LayerRange layers;
    std::span<uint8_t> room;
  };
  static constexpr size_t kRooms = 4;

  RandomTransportsTest() {
    config_.disk_path = (folder_ / "disk").string();
    config_.disk_bytes = 64 << 20;
    config_.host_bytes = 2 << 20;
    config_.scrub_bytes_per_second = 0;
  }
  Worker NewWorker(int index) {
    Worker w;
    w.random.seed(seed_base_ + static_cast<uint64_t>(index));
    w.index = index;
    w.way = &kClientWays[index];
    w.client = ConnectBy(*w.way, std::chrono::seconds(20));
    const size_t page = PageBytes(SpecOf("a"), kTokens);
    w.own.assign(kRooms, std::vector<uint8_t>(page));
    return w;
  }
  std::span<uint8_t> Room(Worker& w, size_t i) {
    const size_t page = w.own[i].size();
    return w.buffer != nullptr ? w.buffer->bytes().subspan(i * page, page) : std::span(w.own[i]);
  }
  static std::string KeyOf(int key) { return absl::StrCat("key-", key); }

  void OpenAll(Client& client, const std::string& revision) {
    for (const auto& [name, recipe] : kSpaces) {
      (void)client.OpenSpace({.name = name, .spec = SpecOf(revision), .recipe = recipe});
    }
  }

  void Put(Worker& w, size_t space, int key, int version) {
    const std::vector<uint8_t> page = PageOf('a', space, key, version);
    std::span<uint8_t> room = Room(w, 0);
    std::ranges::copy(page, room.begin());
    PagePut put{.key = KeyOf(key), .raw = room, .tokens = kTokens};
    if (w.way->on_gpu) {
      put.raw = AsDeviceBytes(room);
      put.on_gpu = true;
    }
    if (w.Below(3) == 0) put.ack = AckLevel::kDurable;
    const PutResult result = w.client->Put(kSpaces[space].first, {put}).get()[0];
    if (result.outcome != PageOutcome::kConflict) return;
    // Keys have one writer, so only a version that is still allowed may be there.
    std::lock_guard lock(truth_[space][key].mu);
    EXPECT_LT(truth_[space][key].oldest, version) << "a conflict with what was deleted";
  }

  // Only the key's own thread calls this, and Put.
  void Replace(Worker& w, size_t space, int key) {
    const std::string name = KeyOf(key);
    const auto gone = w.client->Delete(kSpaces[space].first, std::span(&name, 1), /*force=*/true);
    if (!gone.ok()) return;
    const PageOutcome outcome = (*gone)[0];
    if (outcome != PageOutcome::kHit && outcome != PageOutcome::kMiss) return;
    int version;
    {
      std::lock_guard lock(truth_[space][key].mu);
      version = ++truth_[space][key].newest;
      truth_[space][key].oldest = version;
    }
    Put(w, space, key, version);
  }

  void Get(Worker& w, size_t space) {
    std::vector<PageGet> gets;
    std::vector<Asked> asked;
    const KvSpec spec = SpecOf("a");
    for (size_t i = 0; i < 1 + w.Below(kRooms); ++i) {
      Asked a{.key = static_cast<int>(w.Below(kKeys)), .layers = {0, spec.layers}};
      const bool part = w.Below(4) == 0;
      if (part) a.layers = {static_cast<uint32_t>(w.Below(spec.layers)), 1};
      a.room = Room(w, i).first(a.layers.count * LayerBytes(spec, kTokens));
      {
        std::lock_guard lock(truth_[space][a.key].mu);
        a.oldest = truth_[space][a.key].oldest;
      }
      PageGet get{.key = KeyOf(a.key), .out = a.room, .on_gpu = w.way->on_gpu};
      if (w.way->on_gpu) get.out = AsDeviceBytes(a.room);
      if (part) get.first_layer = a.layers.first, get.layer_count = a.layers.count;
      gets.push_back(std::move(get));
      asked.push_back(a);
    }
    const auto results = w.client->Get(kSpaces[space].first, 0, std::move(gets)).get();
    for (size_t i = 0; i < asked.size(); ++i) {
      if (results[i].outcome == PageOutcome::kHit) Verify(w, space, asked[i], results[i]);
    }
  }

  void Verify(Worker& w, size_t space, const Asked& asked, const GetResult& result) {
    ++reads_;
    int newest;
    {
      std::lock_guard lock(truth_[space][asked.key].mu);
      newest = truth_[space][asked.key].newest;
    }
    ASSERT_EQ(result.bytes, asked.room.size());
    EXPECT_EQ(result.exact, space != kLossy);
    const size_t layer = LayerBytes(SpecOf("a"), kTokens);
    for (int v = asked.oldest; v <= newest; ++v) {
      const std::vector<uint8_t> page = PageOf('a', space, asked.key, v);
      const auto part = std::span(page).subspan(asked.layers.first * layer, asked.room.size());
      // Pages have nothing in common: the error of another one would be about 2.
      const double claimed = 2 * result.estimated_error + 1e-3;
      const bool same = space == kLossy ? RelativeError(part, asked.room) < std::min(claimed, 0.5)
                                        : std::ranges::equal(part, asked.room);
      if (same) return;
    }
    ADD_FAILURE() << "worker " << w.index << ": " << kSpaces[space].first << "/" << asked.key
                  << " is none of versions " << asked.oldest << " to " << newest << " ("
                  << result.recipe << ", tier " << result.tier << ", seed " << seed_base_ << ")";
    failed_ = true;
  }

  void Step(Worker& w) {
    // A restart takes the memory that was shared.
    if (w.way->shared && (w.buffer == nullptr || !w.buffer->shared())) {
      w.buffer = w.client->NewBuffer(kRooms * w.own[0].size());
    }
    const size_t space = w.Below(kSpaces.size());
    const int mine = static_cast<int>(w.Below(kKeys / kThreads)) * kThreads + w.index;
    const uint64_t what = w.Below(20);
    if (what == 0) {
      Replace(w, space, mine);
    } else if (what < 6) {
      int version;
      {
        std::lock_guard lock(truth_[space][mine].mu);
        version = truth_[space][mine].newest;
      }
      Put(w, space, mine, version);
    } else if (what < 8) {
      std::vector<std::string> keys = {KeyOf(mine), KeyOf(static_cast<int>(w.Below(kKeys)))};
      (void)w.client->Lookup(kSpaces[space].first, keys);
    } else {
      Get(w, space);
    }
  }

  // On the thread of whoever verified the read at which it is due; the others go on.
  void Disturb(std::mt19937_64& random) {
    switch (random() % 4) {
      case 0:
        (void)server_->store().cooling().Shrink(TierId::kHost, 64 << 10);
        break;
      case 1:
        OtherModel(random() % kSpaces.size());
        break;
      default:
        ASSERT_TRUE(server_->Stop().ok());
        server_.reset();
        if (random() % 2 == 0) DamageDisk(random);
        Start();
    }
  }

  // Another model has a space's name for a while, with pages of its own under every key.
  void OtherModel(size_t space) {
    const auto owner = Connect(), other = Connect();
    const std::string name = kSpaces[space].first;
    if (!owner->DropSpace(name).ok()) return;
    const SpaceOptions b{.name = name, .spec = SpecOf("b"), .recipe = kSpaces[space].second};
    if (!other->OpenSpace(b).ok()) return;  // a worker was faster
    for (int key = 0; key < kKeys; ++key) {
      const std::vector<uint8_t> page = PageOf('b', space, key, 1);
      (void)other->Put(name, {{.key = KeyOf(key), .raw = page, .tokens = kTokens}}).get();
    }
    EXPECT_TRUE(other->DropSpace(name).ok());
  }

  void DamageDisk(std::mt19937_64& random) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(config_.disk_path)) {
      // Segment files; their space is taken from the start, so most of a file is empty.
      if (!entry.is_regular_file() || entry.path().string().find("segments") == std::string::npos) {
        continue;
      }
      std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
      for (int i = 0; i < 200; ++i) {
        const auto at = static_cast<std::streamoff>(random() % (1 << 20));
        file.seekg(at);
        const int byte = file.get();
        if (!file.good()) break;
        file.seekp(at);
        file.put(static_cast<char>(byte ^ 1 << random() % 8));
      }
    }
  }

  void Work(Worker& w, uint64_t reads) {
    const uint64_t epoch = std::max<uint64_t>(reads / 12, 1);
    for (uint64_t steps = 0; reads_ < reads && steps < 100 * reads && !failed_; ++steps) {
      Step(w);
      uint64_t due = next_epoch_;
      if (reads_ < due || !next_epoch_.compare_exchange_strong(due, due + epoch)) continue;
      std::lock_guard lock(disturbing_);
      Disturb(w.random);
    }
  }

  const uint64_t seed_base_ = NumberFromEnv("KVSTOW_SEED", 1);
  std::array<std::array<Truth, kKeys>, kSpaces.size()> truth_;
  std::atomic<uint64_t> reads_ = 0, next_epoch_ = 500;
  std::atomic<bool> failed_ = false;
  std::mutex disturbing_;
};

TEST_F(RandomTransportsTest, EveryHitIsWhatWasPut) {
  const uint64_t reads = NumberFromEnv("KVSTOW_TRANSPORT_READS", 10'000);
  Start();
  OpenAll(*Connect(), "a");
  std::vector<Worker> workers;
  for (int i = 0; i < kThreads; ++i) {
    workers.push_back(NewWorker(i));
    OpenAll(*workers.back().client, "a");
  }
  std::vector<std::thread> threads;
  for (Worker& w : workers) threads.emplace_back([&] { Work(w, reads); });
  for (std::thread& t : threads) t.join();
  EXPECT_GE(reads_, reads) << "seed " << seed_base_;
  EXPECT_TRUE(server_->store().residency().CheckInvariants().ok());
}

}  // namespace
}  // namespace kvstow
