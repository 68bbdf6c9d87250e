// What TLS costs on direct connections.
//
//   BM_DirectTls/get, /put   raw pages of 2 MiB through Client and Server over one direct
//                            connection, a thread each side, plain and with TLS in turns. `plain`
//                            and `tls` are medians in GB/s, `of_plain` is their ratio, and `gcm` is
//                            AES-128-GCM by itself in the same turns: records of 16 KiB that stay
//                            in the cache, one core. `limit` is what of_plain would be if TLS cost
//                            each side the time of `gcm` and nothing else.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/aes_gcm.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/client.h"
#include "service/server.h"
#include "tests/proto/certificates.h"

namespace kvstow {
namespace {

constexpr size_t kPages = 32;
constexpr int kTurns = 11;
constexpr size_t kRecordBytes = 16 << 10;

KvSpec Spec() {
  KvSpec spec{.model = "bench/tls",
              .revision = kUnversioned,
              .layers = 8,
              .kv_heads = 8,
              .page_tokens = 64};
  spec.head_dim_k = spec.head_dim_v = 128;
  return spec;
}

std::string KeyOf(size_t page, size_t turn) { return absl::StrCat("page-", page, "-", turn); }

// A server and its one client.
class Pair {
 public:
  Pair(const TlsFiles& server, const TlsOptions& client) {
    Config config;
    config.listen = "127.0.0.1:0";
    config.http_listen = "off";
    config.host_bytes = uint64_t{1} << 30;
    config.tls_cert = server.certificate;
    config.tls_key = server.key;
    config.scrub_bytes_per_second = 0;
    server_ = Server::Start(config, {}).value();
    client_ = Client::Connect(
        {.address = server_->address(), .tls = client, .shared_bytes = 0, .direct_connections = 1});
    client_->OpenSpace({.name = "s", .spec = Spec(), .recipe = "raw"}).value();
    for (auto& page : pages_) {
      page.resize(PageBytes(Spec(), Spec().page_tokens));
      for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<uint8_t>(0x30 + i % 7);
    }
    Put(0);
    Get();  // the connection is there now
  }

  // GB/s of all pages.
  double Put(size_t turn) {
    std::vector<PagePut> puts;
    std::vector<std::string> keys;
    for (size_t p = 0; p < kPages; ++p) keys.push_back(KeyOf(p, turn));
    for (size_t p = 0; p < kPages; ++p) {
      puts.push_back({.key = keys[p], .raw = pages_[p], .tokens = Spec().page_tokens});
    }
    const Time begin = Clock::Real().Now();
    for (const PutResult& r : client_->Put("s", puts).get()) {
      if (r.outcome != PageOutcome::kStored) std::abort();
    }
    const double speed = SpeedSince(begin);
    if (turn > 0) static_cast<void>(client_->Delete("s", keys, /*force=*/true));
    return speed;
  }
  double Get() {
    std::vector<PageGet> gets;
    for (size_t p = 0; p < kPages; ++p) gets.push_back({.key = KeyOf(p, 0), .out = pages_[p]});
    const Time begin = Clock::Real().Now();
    for (const GetResult& r : client_->Get("s", 0, gets).get()) {
      if (r.outcome != PageOutcome::kHit) std::abort();
    }
    return SpeedSince(begin);
  }

 private:
  double SpeedSince(Time begin) const {
    const std::chrono::duration<double> took = Clock::Real().Now() - begin;
    return static_cast<double>(kPages * pages_[0].size()) / took.count() / 1e9;
  }
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::vector<std::vector<uint8_t>> pages_{kPages};
};

// GB/s of AES-128-GCM, as a record is coded: its own nonce and 5 bytes beside it, a tag behind it.
double GcmSpeed() {
  const auto cipher = AesGcm::Make(AesGcm::Use::kSeal, std::vector<uint8_t>(16));
  std::vector<uint8_t> record(kRecordBytes), coded(kRecordBytes);
  constexpr int kRecords = 4096;
  const Time begin = Clock::Real().Now();
  for (int i = 0; i < kRecords; ++i) {
    const GcmNonce nonce = {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)};
    cipher->Begin(nonce, std::array<uint8_t, 5>{});
    cipher->Update(record, coded.data());
    benchmark::DoNotOptimize(cipher->Tag());
  }
  const std::chrono::duration<double> took = Clock::Real().Now() - begin;
  return static_cast<double>(kRecords * kRecordBytes) / took.count() / 1e9;
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void DirectTls(benchmark::State& state, bool put) {
  static_cast<void>(SetUpLog("error", "text"));
  std::string name = (std::filesystem::temp_directory_path() / "kvstow_bench_XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(name.data());
  {
    const testing::Certificates files(folder);
    Pair plain({}, {}), tls(files.server(), {.ca = files.ca.file()});
    for (auto _ : state) {
      std::vector<double> by_plain, by_tls, by_gcm;
      for (size_t turn = 1; turn <= kTurns; ++turn) {
        by_plain.push_back(put ? plain.Put(turn) : plain.Get());
        by_tls.push_back(put ? tls.Put(turn) : tls.Get());
        by_gcm.push_back(GcmSpeed());
      }
      state.counters["plain"] = Median(by_plain);
      state.counters["tls"] = Median(by_tls);
      state.counters["of_plain"] = Median(by_tls) / Median(by_plain);
      state.counters["gcm"] = Median(by_gcm);
      state.counters["limit"] = Median(by_gcm) / (Median(by_gcm) + Median(by_plain));
    }
  }
  std::filesystem::remove_all(folder);
}
BENCHMARK_CAPTURE(DirectTls, get, false)->Name("BM_DirectTls/get")->Iterations(1)->UseRealTime();
BENCHMARK_CAPTURE(DirectTls, put, true)->Name("BM_DirectTls/put")->Iterations(1)->UseRealTime();

}  // namespace
}  // namespace kvstow
