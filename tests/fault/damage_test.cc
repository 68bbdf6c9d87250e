// Damage by the thousand to bodies in memory and on disk: flipped bits, lost ends, bodies that
// changed places. Every one is a miss and counts, and everything else is right.
//
//   KVSTOW_DAMAGES=N    so many on each medium
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "tests/storage/number_from_env.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

class DamageTest : public StoreTest {
 protected:
  static constexpr uint64_t kPages = 250;

  // Two segments in segment files and a small one in a table.
  static PrfPage PageOf(uint64_t key) { return {.key = key, .sizes = {6000, 5000, 2000}}; }

  // Damages one body in place: `other` is one of the same size. Never leaves it as it was.
  void Damage(uint8_t* body, uint8_t* other, size_t size) {
    switch (random_() % 3) {
      case 0:
        body[random_() % size] ^= 1 << random_() % 8;
        break;
      case 1:
        std::memset(body + random_() % (size - 16), 0, 16);
        break;
      default:
        std::swap_ranges(body, body + size, other);
    }
  }
  // Damages one segment of each page, picked at random. The bodies lie at places of `bodies`, which
  // may be swapped with those of the next page.
  template <typename At>
  void DamageEachPage(uint64_t first, At at) {
    for (uint64_t key = first; key < first + kPages; key += 2) {
      const size_t segment = random_() % 3, size = PageOf(key).sizes[segment];
      std::vector<uint8_t> before(at(key, segment), at(key, segment) + size);
      std::vector<uint8_t> next(at(key + 1, segment), at(key + 1, segment) + size);
      Damage(at(key, segment), at(key + 1, segment), size);
      ASSERT_NE(std::memcmp(before.data(), at(key, segment), size), 0);
      damaged_[key] = segment;
      if (std::memcmp(next.data(), at(key + 1, segment), size) != 0) damaged_[key + 1] = segment;
    }
  }
  void ExpectMissesThatCount(uint64_t first) {
    const uint64_t corrupt = store_->residency().Counters().corrupt_segments;
    for (uint64_t key = first; key < first + kPages; ++key) {
      const auto it = damaged_.find(key);
      EXPECT_EQ(ReadUnchecked(PageOf(key)), it == damaged_.end() ? 3 : it->second) << key;
    }
    EXPECT_EQ(store_->residency().Counters().corrupt_segments, corrupt + damaged_.size());
    EXPECT_OK(store_->residency().CheckInvariants());
    done_ += damaged_.size();
    damaged_.clear();
    for (uint64_t key = first; key < first + kPages; ++key) {
      store_->Delete(PageOf(key).name(), true).IgnoreError();  // some are gone
    }
  }

  const uint64_t wanted_ = NumberFromEnv("KVSTOW_DAMAGES", 500);
  std::mt19937_64 random_{2026};
  std::map<uint64_t, size_t> damaged_;  // key -> the segment that was
  uint64_t done_ = 0;
};

TEST_F(DamageTest, InMemory) {
  Open(0, 64 << 20, 0);
  for (uint64_t first = 1; done_ < wanted_; first += kPages) {
    // The host tier keeps these very bytes.
    std::map<std::pair<uint64_t, size_t>, std::shared_ptr<std::vector<uint8_t>>> bodies;
    for (uint64_t key = first; key < first + kPages; ++key) {
      PageToStore page = PageOf(key).ToStore();
      for (size_t i = 0; i < 3; ++i) {
        auto body = std::make_shared<std::vector<uint8_t>>(PageOf(key).Body(i));
        bodies[{key, i}] = body;
        page.bodies[i] = SharedBytes(body, std::span<const uint8_t>(*body));
      }
      ASSERT_OK(store_->Put(std::move(page)).status());
    }
    DamageEachPage(first, [&](uint64_t key, size_t i) { return bodies[{key, i}]->data(); });
    ExpectMissesThatCount(first);
  }
}

TEST_F(DamageTest, InTablesAndSegmentFiles) {
  Open(0, 0, uint64_t{3} << 30);  // all of a round fits RocksDB's buffers: nothing is compacted
  for (uint64_t first = 1; done_ < wanted_; first += kPages) {
    for (uint64_t key = first; key < first + kPages; ++key) {
      ASSERT_OK(store_->Put(PageOf(key).ToStore()).status());
    }
    Reopen();  // what was in the log goes to tables
    // Bodies are found in the files by their stamps, changed there, and the files written in place.
    std::map<fs::path, std::string> files;
    for (const auto& file : fs::recursive_directory_iterator(dir_.path() + "/db")) {
      const std::string kind = file.path().extension();
      if (kind != ".kvs" && kind != ".sst") continue;
      std::ifstream in(file.path(), std::ios::binary);
      files[file.path()] = {std::istreambuf_iterator<char>(in), {}};
    }
    std::map<std::pair<uint64_t, size_t>, uint8_t*> bodies;
    std::map<fs::path, size_t> searched;  // bodies lie in the order of their pages
    for (uint64_t key = first; key < first + kPages; ++key) {
      for (size_t i = 0; i < 3; ++i) {
        const std::vector<uint8_t> body = PageOf(key).Body(i);
        for (auto& [path, bytes] : files) {
          if ((path.extension() == ".sst") != (i == 2)) continue;
          size_t& from = searched[path];
          void* const at =
              memmem(bytes.data() + from, bytes.size() - from, body.data(), body.size());
          if (at == nullptr) continue;
          bodies[{key, i}] = static_cast<uint8_t*>(at);
          from = bodies[{key, i}] - reinterpret_cast<uint8_t*>(bytes.data());
          break;
        }
        ASSERT_NE((bodies[{key, i}]), nullptr) << "key " << key << " segment " << i;
      }
    }
    DamageEachPage(first, [&](uint64_t key, size_t i) { return bodies[{key, i}]; });
    for (const auto& [path, bytes] : files) {
      const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
      ASSERT_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
      fsync(fd);
      close(fd);
    }
    ExpectMissesThatCount(first);
    store_.reset();
    fs::remove_all(dir_.path() + "/db");
    Reopen();
  }
}

// In a log RocksDB finds the damage when it opens, and drops what follows. If the length of the
// last record grew, the log ends in the middle of it: only that cannot be told from a log that was
// cut.
TEST_F(DamageTest, InTheLog) {
  const uint64_t rounds = wanted_ / 50;
  uint64_t counted = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    Open(0, 0, 64 << 20);
    for (uint64_t key = 1; key <= 20; ++key) {
      ASSERT_OK(store_->Put(PageOf(key).ToStore(Ack::kProcess)).status());
    }
    store_.reset();
    fs::path log;
    for (const auto& file : fs::directory_iterator(dir_.path() + "/db")) {
      if (file.path().extension() == ".log" && file.file_size() > 0) log = file.path();
    }
    ASSERT_FALSE(log.empty());
    std::string bytes;
    {
      std::ifstream in(log, std::ios::binary);
      bytes = {std::istreambuf_iterator<char>(in), {}};
    }
    const size_t at = random_() % bytes.size();
    bytes[at] ^= static_cast<char>(1 << random_() % 8);
    std::ofstream(log, std::ios::binary) << bytes;
    ReopenDamaged();
    size_t good = 0;
    for (uint64_t key = 1; key <= 20; ++key) {
      const size_t segments = ReadUnchecked(PageOf(key));
      EXPECT_TRUE(segments == 0 || segments == 3) << "key " << key;
      good += segments;
    }
    EXPECT_LT(good, 60u) << "the damage was not noticed";
    counted += store_->residency().Counters().damaged_logs;
    EXPECT_TRUE(store_->residency().Counters().damaged_logs == 1 || good == 57)
        << "byte " << at << " of " << bytes.size();
    store_.reset();
    fs::remove_all(dir_.path() + "/db");
  }
  EXPECT_GE(counted, rounds * 9 / 10);
}

}  // namespace
}  // namespace kvstow
