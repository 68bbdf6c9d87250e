// Tiers and the whole store: GB/s of 1 MiB segments, and how that compares with what the machine
// can do in the same run: `of_memcpy` and, for the disk, `of_device` and `of_device_huge` (loops of
// O_DIRECT writes or reads of 1 MiB in one preallocated file, from or to memory as malloc gives it
// and memory on huge pages; the mean of one before and one after). BM_Store/DiskPut* and Spill are
// stores that are full: they write to blocks that were written before, as their loops do; all other
// writes, and their loops, go to new blocks. BM_Tier/BlobDb* is RocksDB with blob files as it
// comes. Writes to disk are synced within the time. `cpu_s_per_gb` is of the whole process.
// The host tier takes and gives references: its figures are the cost of the bookkeeping, and
// BM_Store/HostRead that of the digest.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/aead.h"
#include "base/digest.h"
#include "kernels/device/device.h"
#include "storage/disk/block_pool.h"
#include "storage/disk/rocks_tier.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"
#include "tests/bench/default_blob_db.h"

namespace kvstow {
namespace {

constexpr size_t kSegment = 1 << 20;
constexpr uint64_t kSegments = 512;  // of one run: more than the caches and write buffers hold

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvstow-bench-XXXXXX").string();
    path_ = mkdtemp(name.data()) == nullptr ? "" : name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// Bytes that no file system or disk can shrink.
std::vector<uint8_t> Noise(uint64_t seed) {
  std::vector<uint8_t> out(kSegment);
  uint64_t x = seed * 0x9E3779B97F4A7C15 + 1;
  for (size_t at = 0; at < out.size(); at += sizeof(x)) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(out.data() + at, &x, sizeof(x));
  }
  return out;
}

// So that reads come from the disk.
void LeavePageCache(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) continue;
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

double MemcpyBytesPerSecond() {
  const std::vector<uint8_t> from(64 << 20, 1);
  std::vector<uint8_t> to(from.size(), 2);
  std::memcpy(to.data(), from.data(), from.size());
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0; at < from.size(); at += kSegment) {
    std::memcpy(to.data() + at, from.data() + at, kSegment);
    benchmark::ClobberMemory();
  }
  return from.size() / Seconds(start);
}

enum class Io { kRead, kWriteAgain, kWriteNew };

// 0 where the file system has no direct I/O.
double DeviceBytesPerSecond(const std::string& folder, Io io, bool huge_pages) {
  constexpr size_t kPieces = 256;
  const std::string name = folder + "/device";
  const int file = open(name.c_str(), O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) return 0;
  const std::shared_ptr<uint8_t[]> memory = AlignedBlock(huge_pages ? 2 * kSegment : kSegment);
  uint8_t* const block = memory.get();
  std::memcpy(block, Noise(1).data(), kSegment);
  bool ok = posix_fallocate(file, 0, kPieces * kSegment) == 0;
  const auto loop = [&](bool writing) {
    for (size_t i = 0; i < kPieces && ok; ++i) {
      const off_t at = static_cast<off_t>((writing ? i : i * 37 % kPieces) * kSegment);
      ok = (writing ? pwrite(file, block, kSegment, at) : pread(file, block, kSegment, at)) ==
           static_cast<ssize_t>(kSegment);
    }
  };
  if (io != Io::kWriteNew) loop(true);
  const auto start = std::chrono::steady_clock::now();
  loop(io != Io::kRead);
  const double rate = ok ? kPieces * kSegment / Seconds(start) : 0;
  close(file);
  unlink(name.c_str());
  return rate;
}

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
         1e-6 * (used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

// Meters what one benchmark writes or reads: sums, and rates beside the machine's.
class Meter {
 public:
  // `folder` empty: no disk.
  Meter(std::string folder, Io io) : folder_(std::move(folder)), io_(io) { MeasureDevice(); }
  template <typename Call>
  void Time(benchmark::State& state, double bytes, Call call) {
    const double cpu = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    call();
    const double took = Seconds(start);
    state.SetIterationTime(took);
    seconds_ += took;
    cpu_ += CpuSeconds() - cpu;
    bytes_ += bytes;
  }
  void Report(benchmark::State& state) {
    state.SetBytesProcessed(static_cast<int64_t>(bytes_));
    state.counters["of_memcpy"] = bytes_ / seconds_ / MemcpyBytesPerSecond();
    state.counters["cpu_s_per_gb"] = cpu_ / bytes_ * 1e9;
    MeasureDevice();
    if (device_ == 0) return;
    state.counters["of_device"] = bytes_ / seconds_ / (device_ / 2);
    state.counters["of_device_huge"] = bytes_ / seconds_ / (device_huge_ / 2);
  }

 private:
  void MeasureDevice() {
    if (folder_.empty()) return;
    device_ += DeviceBytesPerSecond(folder_, io_, false);
    device_huge_ += DeviceBytesPerSecond(folder_, io_, true);
  }

  const std::string folder_;
  const Io io_;
  double device_ = 0, device_huge_ = 0;  // sums of two
  double bytes_ = 0, seconds_ = 0, cpu_ = 0;
};

enum class Where { kHost, kDisk, kBlobDb };

std::unique_ptr<Tier> OpenTier(Where where, const std::string& folder, benchmark::State& state) {
  if (where == Where::kHost) return MakeMemoryTier(HostDevice());
  if (where == Where::kBlobDb) return OpenDefaultBlobDb(folder);
  auto store = OpenRocksStore({.path = folder});
  if (store.ok()) return std::move(store->tier);
  state.SkipWithError(std::string(store.status().message()).c_str());
  return nullptr;
}

// One iteration writes, or reads in scattered order, all segments.
void BM_Tier(benchmark::State& state, Where where, bool write) {
  const Folder folder;
  const std::unique_ptr<Tier> tier = OpenTier(where, folder.path(), state);
  if (tier == nullptr) return;
  Meter meter(where == Where::kHost ? "" : folder.path(), write ? Io::kWriteNew : Io::kRead);
  const SharedBytes body = SharedBytes::Take(Noise(7));
  const uint64_t digest = Xxh3(body.span());
  uint64_t page = 0;
  const auto write_all = [&] {
    for (uint64_t i = 0; i < kSegments; ++i) {
      const SegmentBody one{{++page, 0}, body};
      if (!tier->Write({&one, 1}).ok()) state.SkipWithError("write failed");
    }
    if (where == Where::kBlobDb && !tier->Write({}).ok()) state.SkipWithError("flush failed");
  };
  const auto read_all = [&] {
    for (uint64_t i = 0; i < kSegments; ++i) {
      const ExpectedSegment one{{1 + i * 37 % kSegments, 0}, 0, {kSegment, 1, digest}};
      const auto got = tier->Read({&one, 1});
      if (!got[0].ok()) state.SkipWithError("read failed");
      benchmark::DoNotOptimize(got[0]->data()[kSegment - 1]);
    }
  };
  if (!write) write_all();
  for (auto _ : state) {
    if (!write) LeavePageCache(folder.path());
    meter.Time(state, kSegments * kSegment, [&] { write ? write_all() : read_all(); });
  }
  meter.Report(state);
}

PageToStore PageOf(uint64_t key, const SharedBytes& body, uint64_t digest, Ack ack) {
  PageToStore page{.name = {.space = 1, .key = std::to_string(key)},
                   .header = SharedBytes::Take(std::string(200, 'h')),
                   .raw_bytes = 4 * kSegment,
                   .first_position = key,
                   .tokens = 256,
                   .ack = ack};
  page.facts.push_back({.bytes = kSegment, .gain = 1, .digest = digest});
  page.bodies.push_back(body);
  return page;
}

// The whole store with pages of one segment: everything in the host tier, or everything on disk. A
// disk that is `full` holds what one iteration writes: each put makes another page go. kSpill is a
// full disk below a host tier of an eighth of it, as a server has it.
enum class Store { kHost, kDisk, kFullDisk, kSpill };

void BM_Store(benchmark::State& state, Store where, bool write, Ack ack) {
  const bool disk = where != Store::kHost;
  const bool full = where == Store::kFullDisk || where == Store::kSpill;
  const Folder folder;
  TieredStoreOptions options;
  if (!disk) options.budget_bytes[1] = uint64_t{16} << 30;
  if (where == Store::kSpill) options.budget_bytes[1] = kSegments * kSegment / 8;
  options.background = where == Store::kSpill;
  TieredStoreParts parts;
  if (options.budget_bytes[1] > 0) parts.tiers[1] = MakeMemoryTier(HostDevice());
  if (disk) {
    options.budget_bytes[2] = full ? kSegments * (kSegment + 4096) : uint64_t{64} << 30;
    auto rocks = OpenRocksStore({.path = folder.path()});
    if (!rocks.ok()) return state.SkipWithError(std::string(rocks.status().message()).c_str());
    parts.tiers[2] = std::move(rocks->tier);
    parts.catalog = std::move(rocks->catalog);
  }
  const auto store = TieredStore::Open(options, std::move(parts));
  if (!store.ok()) return state.SkipWithError("open failed");
  Meter meter(disk ? folder.path() : "", !write ? Io::kRead
                                         : full ? Io::kWriteAgain
                                                : Io::kWriteNew);
  const SharedBytes body = SharedBytes::Take(Noise(7));
  const uint64_t digest = Xxh3(body.span());
  uint64_t key = 0;
  const auto write_all = [&] {
    for (uint64_t i = 0; i < kSegments; ++i) {
      if (!(*store)->Put(PageOf(++key, body, digest, ack)).ok()) state.SkipWithError("put failed");
    }
    if (disk && !(*store)->Flush().ok()) state.SkipWithError("flush failed");
  };
  const auto read_all = [&] {
    for (uint64_t i = 0; i < kSegments; ++i) {
      const PageName name{.space = 1, .key = std::to_string(1 + i * 37 % kSegments)};
      const auto facts = (*store)->residency().Find(name);
      const uint16_t base = 0;
      if (!facts.ok() || !(*store)->Read(name, facts->number, {&base, 1})[0].ok()) {
        state.SkipWithError("read failed");
      }
    }
  };
  if (!write) write_all();
  for (int i = 0; full && i < 2; ++i) write_all();
  for (auto _ : state) {
    if (!write) LeavePageCache(folder.path());
    meter.Time(state, kSegments * kSegment, [&] { write ? write_all() : read_all(); });
  }
  meter.Report(state);
}

// The key of every tenant.
class OneKey final : public DataKeys {
 public:
  bool seals() const override { return true; }
  bool reads_clear() const override { return false; }
  absl::StatusOr<DataKey> KeyToSeal(absl::string_view) override { return key_; }
  absl::StatusOr<DataKey> KeyToOpen(absl::string_view, uint32_t) override { return key_; }

 private:
  const DataKey key_{1, std::make_shared<const SecretKey>(SecretKey::Random())};
};

// A store of bodies of `bytes`: a full disk below a host tier, or a disk alone, to be read.
struct SealedStore {
  bool Open(bool sealed, size_t bytes, bool full) {
    count = kSegments * kSegment / bytes;
    body = SharedBytes::Take(Noise(7)).Slice(0, bytes);
    digest = Xxh3(body.span());
    auto rocks = OpenRocksStore(
        {.path = folder.path(), .keys = sealed ? std::make_shared<OneKey>() : NoDataKeys()});
    if (!rocks.ok()) return false;
    TieredStoreParts parts;
    if (full) parts.tiers[1] = MakeMemoryTier(HostDevice());
    parts.tiers[2] = std::move(rocks->tier);
    parts.catalog = std::move(rocks->catalog);
    TieredStoreOptions options;
    options.budget_bytes = {0, 0, uint64_t{64} << 30};
    if (full) options.budget_bytes = {0, kSegments * kSegment / 8, count * (bytes + 4096)};
    options.background = full;
    auto opened = TieredStore::Open(options, std::move(parts));
    if (opened.ok()) store = *std::move(opened);
    return opened.ok() && Write() && (!full || (Write() && Write()));
  }
  // A round of spills: a put pushes another page out of memory, and a third one off the disk.
  bool Write() {
    bool ok = true;
    for (uint64_t i = 0; i < count && ok; ++i) {
      PageToStore page = PageOf(++key, body, digest, Ack::kMemory);
      page.facts[0].bytes = static_cast<uint32_t>(body.size());
      ok = store->Put(std::move(page)).ok();
    }
    return ok && store->Flush().ok();
  }
  // All pages in scattered order, by so many readers at once: a server has one a core.
  bool Read(uint64_t readers) {
    std::atomic<bool> ok{true};
    std::vector<std::thread> threads;
    for (uint64_t first = 0; first < readers; ++first) {
      threads.emplace_back([&, first] {
        for (uint64_t i = first; i < count && ok; i += readers) {
          if (!ReadPage(1 + i * 37 % count)) ok = false;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ok;
  }
  bool ReadPage(uint64_t number) {
    const PageName name{.space = 1, .key = std::to_string(number)};
    const auto facts = store->residency().Find(name);
    const uint16_t base = 0;
    return facts.ok() && store->Read(name, facts->number, {&base, 1})[0].ok();
  }

  const Folder folder;
  std::unique_ptr<TieredStore> store;
  SharedBytes body;
  uint64_t digest = 0, key = 0, count = 0;
};

// What encryption costs: the same store in clear and sealed, round by round in turns. `of_clear` is
// the median over the rounds of the sealed store's speed as a share of the other's. `gcm` is the
// speed of the cipher alone, in one thread: what there is to hide behind the disk.
void BM_Sealed(benchmark::State& state, size_t bytes, uint64_t readers) {
  const bool write = readers == 0;
  SealedStore clear, sealed;
  if (!clear.Open(false, bytes, write) || !sealed.Open(true, bytes, write)) {
    return state.SkipWithError("filling failed");
  }
  std::vector<double> ratios;
  double seconds[2] = {}, cpu[2] = {};
  for (auto _ : state) {
    double took[2] = {};
    for (const int turn : {0, 1}) {
      SealedStore& one = turn == 0 ? clear : sealed;
      if (!write) LeavePageCache(one.folder.path());
      const double cpu_before = CpuSeconds();
      const auto start = std::chrono::steady_clock::now();
      if (!(write ? one.Write() : one.Read(readers))) state.SkipWithError("failed");
      took[turn] = Seconds(start);
      seconds[turn] += took[turn];
      cpu[turn] += CpuSeconds() - cpu_before;
    }
    state.SetIterationTime(took[1]);
    ratios.push_back(took[0] / took[1]);
  }
  const double round = static_cast<double>(clear.count * bytes * ratios.size());
  std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
  state.counters["of_clear"] = ratios[ratios.size() / 2];
  state.counters["clear_gib"] = round / seconds[0] / (1 << 30);
  state.counters["sealed_gib"] = round / seconds[1] / (1 << 30);
  state.counters["clear_cpu_s_per_gb"] = cpu[0] / round * 1e9;
  state.counters["sealed_cpu_s_per_gb"] = cpu[1] / round * 1e9;
  std::vector<uint8_t> out(bytes);
  const SecretKey secret = SecretKey::Random();
  double best = 1e9;  // others may be using the machine
  for (int i = 0; i < 256; ++i) {
    const auto start = std::chrono::steady_clock::now();
    AeadMessage message = AeadMessage::ToSeal(secret, RandomNonce(), {});
    message.Update({sealed.body.data(), bytes}, out.data());
    benchmark::DoNotOptimize(message.Tag());
    best = std::min(best, Seconds(start));
  }
  state.counters["gcm_gib"] = static_cast<double>(bytes) / best / (1 << 30);
}

// Puts of one 64 KiB segment each that survive power loss, from several threads at once: those that
// wait for the disk together are synced together.
void BM_DurablePuts(benchmark::State& state) {
  constexpr uint64_t kPuts = 64;  // of a thread
  const Folder folder;
  auto rocks = OpenRocksStore({.path = folder.path()});
  if (!rocks.ok()) return state.SkipWithError("open failed");
  TieredStoreParts parts;
  parts.tiers[2] = std::move(rocks->tier);
  parts.catalog = std::move(rocks->catalog);
  const auto store =
      TieredStore::Open({.budget_bytes = {0, 0, uint64_t{64} << 30}}, std::move(parts));
  if (!store.ok()) return state.SkipWithError("open failed");
  std::vector<uint8_t> noise = Noise(7);
  noise.resize(64 << 10);
  const SharedBytes body = SharedBytes::Take(std::move(noise));
  std::atomic<uint64_t> key{0}, failed{0};
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (int t = 0; t < state.range(0); ++t) {
      threads.emplace_back([&] {
        for (uint64_t i = 0; i < kPuts; ++i) {
          PageToStore page = PageOf(++key, body, Xxh3(body.span()), Ack::kDurable);
          page.facts[0].bytes = body.size();
          failed += (*store)->Put(std::move(page)).ok() ? 0 : 1;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  if (failed > 0) state.SkipWithError("put failed");
  state.SetItemsProcessed(static_cast<int64_t>(key));
  state.SetBytesProcessed(static_cast<int64_t>(key * body.size()));
}
// From opening the folder to answering lookups, with KVSTOW_RECOVERY_MIB of pages of 1 MiB on disk.
void BM_Recovery(benchmark::State& state) {
  const char* const text = std::getenv("KVSTOW_RECOVERY_MIB");
  const uint64_t pages = text == nullptr ? 64 : std::strtoull(text, nullptr, 10);
  const Folder folder;
  const SharedBytes body = SharedBytes::Take(Noise(7));
  const uint64_t digest = Xxh3(body.span());
  const auto open = [&]() -> std::unique_ptr<TieredStore> {
    auto rocks = OpenRocksStore({.path = folder.path()});
    if (!rocks.ok()) return nullptr;
    TieredStoreParts parts;
    parts.tiers[2] = std::move(rocks->tier);
    parts.catalog = std::move(rocks->catalog);
    auto store = TieredStore::Open({.budget_bytes = {0, 0, uint64_t{64} << 30}}, std::move(parts));
    return store.ok() ? *std::move(store) : nullptr;
  };
  std::unique_ptr<TieredStore> store = open();
  bool ok = store != nullptr && store->SaveSpace({.id = 1}).ok();
  for (uint64_t key = 0; ok && key < pages; ++key) {
    ok = store->Put(PageOf(key, body, digest, Ack::kMemory)).ok();
  }
  if (!ok || !store->Flush().ok()) return state.SkipWithError("filling failed");
  for (auto _ : state) {
    state.PauseTiming();
    store.reset();
    LeavePageCache(folder.path());
    state.ResumeTiming();
    store = open();
  }
  if (store == nullptr || store->residency().Usage().pages != pages)
    state.SkipWithError("pages are missing");
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * pages));
}
BENCHMARK(BM_Recovery)->Unit(benchmark::kMillisecond)->UseRealTime();

BENCHMARK(BM_DurablePuts)->Arg(1)->Arg(8)->UseRealTime();

BENCHMARK_CAPTURE(BM_Tier, HostWrite, Where::kHost, true)->UseManualTime();
BENCHMARK_CAPTURE(BM_Tier, HostRead, Where::kHost, false)->UseManualTime();
BENCHMARK_CAPTURE(BM_Tier, DiskWrite, Where::kDisk, true)->UseManualTime();
BENCHMARK_CAPTURE(BM_Tier, DiskRead, Where::kDisk, false)->UseManualTime();
BENCHMARK_CAPTURE(BM_Tier, BlobDbWrite, Where::kBlobDb, true)->UseManualTime();
BENCHMARK_CAPTURE(BM_Tier, BlobDbRead, Where::kBlobDb, false)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, HostPut, Store::kHost, true, Ack::kMemory)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, HostRead, Store::kHost, false, Ack::kMemory)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, DiskFill, Store::kDisk, true, Ack::kMemory)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, DiskPut, Store::kFullDisk, true, Ack::kMemory)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, DiskPutProcess, Store::kFullDisk, true, Ack::kProcess)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, DiskPutDurable, Store::kFullDisk, true, Ack::kDurable)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, Spill, Store::kSpill, true, Ack::kMemory)->UseManualTime();
BENCHMARK_CAPTURE(BM_Store, DiskRead, Store::kDisk, false, Ack::kMemory)->UseManualTime();
BENCHMARK_CAPTURE(BM_Sealed, Spill, kSegment, 0)->UseManualTime()->Iterations(15);
BENCHMARK_CAPTURE(BM_Sealed, Read1, kSegment, 1)->UseManualTime()->Iterations(15);
BENCHMARK_CAPTURE(BM_Sealed, Read2, kSegment, 2)->UseManualTime()->Iterations(15);
BENCHMARK_CAPTURE(BM_Sealed, Read4, kSegment, 4)->UseManualTime()->Iterations(15);
BENCHMARK_CAPTURE(BM_Sealed, Spill64K, 64 << 10, 0)->UseManualTime()->Iterations(9);

}  // namespace
}  // namespace kvstow
