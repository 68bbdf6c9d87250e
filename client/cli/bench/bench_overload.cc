// kvstow bench overload: what a server does when more is put than it can take.
//
// A kvstowd of its own is filled by clients that wait for their answers (the peak), then by calls
// that come at a fixed rate of some times that, whatever became of those before (an open loop).
// Nothing is tried again, so that every refusal counts.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/cli/bench/child.h"
#include "client/cli/bench/load.h"
#include "client/cli/bench/peer.h"
#include "client/cli/bench/socket.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/client.h"
#include "kernels/page/page.h"

namespace kvstow::cli {
namespace {

constexpr char kSpace[] = "overload";
constexpr std::chrono::milliseconds kTimeout(5000);  // of a call

struct Flags {
  OutputFlags output;
  uint32_t clients = 8, batch = 4, seconds = 5, times = 4;
  uint64_t host_bytes = uint64_t{512} << 20;
  std::string recipe = "raw";
  bool local = false;
  KvSpec spec;
};

// The results of the calls of a phase.
struct Outcome {
  uint64_t stored_bytes = 0;  // within the phase
  uint64_t calls = 0, refused = 0, late = 0;
  std::vector<double> us;  // of calls that were stored whole

  double refused_share() const {
    return calls == 0 ? 0 : static_cast<double>(refused) / static_cast<double>(calls);
  }
};

class Load {
 public:
  Load(const Flags& flags, const std::string& address)
      : flags_(flags), page_(MakePage(flags.spec, 1)) {
    for (uint32_t c = 0; c < flags.clients; ++c) {
      clients_.push_back(Client::Connect({.address = address, .timeout = kTimeout, .attempts = 1}));
    }
  }
  ~Load() { clients_.clear(); }  // waits for calls that are open

  absl::Status Open() {
    return clients_[0]
        ->OpenSpace({.name = kSpace, .spec = flags_.spec, .recipe = flags_.recipe})
        .status();
  }
  uint64_t call_bytes() const { return flags_.batch * page_.size(); }

  // Every client has one call at a time.
  Outcome Closed() {
    Begin();
    OnEveryClient(flags_.clients, [&](uint32_t c) {
      while (Clock::Real().Now() < end_) {
        Call call = NextCall();
        const Time start = Clock::Real().Now();
        Count(clients_[c]->Put(kSpace, std::move(call)).get(), start);
      }
    });
    return End();
  }
  // So many calls a second, at their times.
  Outcome AtRate(double calls_a_second) {
    Begin();
    const Time begin = Clock::Real().Now();
    for (uint64_t i = 0;; ++i) {
      const auto due = begin + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
                                   static_cast<double>(i) / calls_a_second));
      if (due >= end_) break;
      std::this_thread::sleep_until(due);
      clients_[i % clients_.size()]->PutAsync(
          kSpace, NextCall(), [this, due](std::vector<PutResult> results) { Count(results, due); });
    }
    return End();
  }

 private:
  using Call = std::vector<PagePut>;

  void Begin() {
    MutexLock lock(mu_);
    outcome_ = {};
    end_ = Clock::Real().Now() + std::chrono::seconds(flags_.seconds);
  }
  Outcome End() {
    MutexLock lock(mu_);
    while (open_ > 0) answered_.Wait(mu_);
    std::sort(outcome_.us.begin(), outcome_.us.end());
    return outcome_;
  }
  Call NextCall() {
    MutexLock lock(mu_);
    ++open_;
    Call call;
    for (uint32_t i = 0; i < flags_.batch; ++i) {
      call.push_back({.key = absl::StrCat("overload-", next_key_++),
                      .raw = page_,
                      .tokens = flags_.spec.page_tokens});
    }
    return call;
  }
  void Count(const std::vector<PutResult>& results, Time start) {
    const Time now = Clock::Real().Now();
    const auto is = [](PageOutcome outcome) {
      return [outcome](const PutResult& result) { return result.outcome == outcome; };
    };
    const auto stored = std::ranges::count_if(results, is(PageOutcome::kStored));
    MutexLock lock(mu_);
    ++outcome_.calls;
    if (stored == static_cast<std::ptrdiff_t>(results.size())) {
      outcome_.us.push_back(std::chrono::duration<double, std::micro>(now - start).count());
    } else if (now - start >= kTimeout) {
      ++outcome_.late;
    } else {
      ++outcome_.refused;
    }
    if (now < end_) outcome_.stored_bytes += static_cast<uint64_t>(stored) * page_.size();
    --open_;
    answered_.NotifyAll();
  }

  const Flags& flags_;
  const std::vector<uint8_t> page_;
  std::vector<std::unique_ptr<Client>> clients_;
  Mutex mu_;
  CondVar answered_;
  Time end_;  // of the phase
  Outcome outcome_ KVSTOW_GUARDED_BY(mu_);
  uint64_t next_key_ KVSTOW_GUARDED_BY(mu_) = 0;
  size_t open_ KVSTOW_GUARDED_BY(mu_) = 0;
};

Json RowOf(const char* load, const Outcome& outcome, double gbps, double ratio, uint64_t rss) {
  return {{"load", load},
          {"goodput_gbps", gbps},
          {"of_peak", ratio},
          {"calls", outcome.calls},
          {"refused_share", outcome.refused_share()},
          {"late", outcome.late},
          {"p50_us", outcome.us.empty() ? Json() : Json(Percentile(outcome.us, 0.5))},
          {"p99_us", outcome.us.empty() ? Json() : Json(Percentile(outcome.us, 0.99))},
          {"server_peak_rss_bytes", rss}};
}

std::vector<std::string> TextOf(const Json& row) {
  const auto ms = [&](const char* name) {
    return row[name].is_null() ? "-" : FormatFixed(row[name].get<double>() / 1e3, 1);
  };
  return {row["load"].get<std::string>(),
          FormatFixed(row["goodput_gbps"].get<double>(), 2),
          FormatFixed(row["of_peak"].get<double>(), 2),
          FormatFixed(100 * row["refused_share"].get<double>(), 1),
          absl::StrCat(row["late"].get<uint64_t>()),
          ms("p50_us"),
          ms("p99_us"),
          FormatSize(row["server_peak_rss_bytes"].get<uint64_t>())};
}

absl::StatusOr<std::string> AddressFor(const Flags& flags, const Scratch& scratch) {
  if (flags.local) return absl::StrCat("unix:", scratch.path(), "/kvstow.sock");
  KVSTOW_ASSIGN_OR_RETURN(const int port, PortForAServer(kLoopback));
  return absl::StrCat(kLoopback, ":", port);
}

absl::Status Overload(const Flags& flags) {
  KVSTOW_RETURN_IF_ERROR(Validate(flags.spec));
  KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch, Scratch::Make());
  KVSTOW_ASSIGN_OR_RETURN(const std::string address, AddressFor(flags, *scratch));
  KVSTOW_ASSIGN_OR_RETURN(
      const auto server,
      StartKvstowd(address, flags.host_bytes, {}, absl::StrCat(scratch->path(), "/kvstow.log")));
  KVSTOW_RETURN_IF_ERROR(Socket::Connect(address).status());  // when this returns, it listens
  Load load(flags, address);
  KVSTOW_RETURN_IF_ERROR(load.Open());
  load.Closed();  // warms up: the store is full from here on
  const auto gbps = [&](const Outcome& outcome) {
    return GigabytesPerSecond(outcome.stored_bytes, flags.seconds);
  };
  const Outcome peak = load.Closed();
  if (peak.us.empty()) return absl::InternalError("no call succeeded: see the server's log");
  const uint64_t peak_rss = server->PeakRssBytes();
  const double rate = gbps(peak) * 1e9 / static_cast<double>(load.call_bytes());
  const Outcome over = load.AtRate(flags.times * rate);
  const Json rows = {
      RowOf("peak", peak, gbps(peak), 1, peak_rss),
      RowOf("offered", over, gbps(over), gbps(over) / gbps(peak), server->PeakRssBytes())};
  Print(flags.output,
        {{"times", flags.times},
         {"host_bytes", flags.host_bytes},
         {"call_bytes", load.call_bytes()},
         {"rows", rows}},
        absl::StrCat("calls of ", FormatSize(load.call_bytes()), ", ", flags.clients,
                     " clients; first each with one call at a time, then calls at ", flags.times,
                     " times that rate\nbudgets of the server: ", FormatSize(flags.host_bytes),
                     " for what it stores, 256 MiB for pages on their way in\n",
                     FormatTable({"LOAD", "STORED GB/s", "xPEAK", "REFUSED %", "LATE", "P50 ms",
                                  "P99 ms", "SERVER'S PEAK RSS"},
                                 {TextOf(rows[0]), TextOf(rows[1])})));
  return absl::OkStatus();
}

}  // namespace

void AddBenchOverload(const Verb& bench) {
  const Verb verb = bench.Add(
      "overload",
      "Starts a kvstowd and puts some times what it can take: what is stored, refused, how fast, "
      "in how much memory");
  const auto flags = std::make_shared<Flags>();
  flags->spec = {.model = "overload",
                 .revision = kUnversioned,
                 .layers = 16,
                 .kv_heads = 8,
                 .page_tokens = 64};
  flags->spec.head_dim_k = flags->spec.head_dim_v = 64;
  AddOutputFlags(verb, flags->output);
  verb.Option("--times", flags->times, "offered load, in peaks").Within(1, 100).ShowDefault();
  verb.Option("--seconds", flags->seconds, "of each of the three phases")
      .Within(1, 3600)
      .ShowDefault();
  verb.Option("--clients", flags->clients, "clients, each with its connections")
      .Within(1, 256)
      .ShowDefault();
  verb.Option("--batch", flags->batch, "pages in a call").Within(1, 1024).ShowDefault();
  verb.Option("--page-tokens", flags->spec.page_tokens, "tokens of a page: 32 KiB each")
      .ShowDefault();
  verb.Option("--recipe", flags->recipe, "codec").ShowDefault();
  verb.Switch("--local", flags->local, "over a UNIX socket, where all goes over gRPC");
  verb.Footer(
      "Examples:\n  kvstow bench overload\n  kvstow bench overload --times 8 --recipe int8");
  verb.Run([flags] {
    const absl::Status status = Overload(*flags);
    return status.ok() ? kDone : Fail(flags->output, status);
  });
}

}  // namespace kvstow::cli
