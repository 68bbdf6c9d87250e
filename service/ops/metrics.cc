#include "service/ops/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

// From 50 microseconds to about 3 seconds, doubling.
Histogram::BucketBoundaries TimeBuckets() {
  Histogram::BucketBoundaries out;
  for (double s = 50e-6; s < 4; s *= 2) out.push_back(s);
  return out;
}

Family<Counter>& Count(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// Metrics that are taken from elsewhere when the text is made.
class Sampled {
 public:
  void Add(MetricType type, const std::string& name, const char* help, const Labels& labels,
           double value) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back({name, help, type, {}});
    }
    prometheus::ClientMetric metric;
    for (const auto& [label, text] : labels) metric.label.push_back({label, text});
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Gauge(const std::string& name, const char* help, double value, const Labels& labels = {}) {
    Add(MetricType::Gauge, name, help, labels, value);
  }
  std::vector<MetricFamily> Take() && { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
};

struct CounterRow {
  const char* name;
  const char* help;
  uint64_t StoreCounters::*value;
};
constexpr CounterRow kStoreCounters[] = {
    {"puts", "pages that were put into the store", &StoreCounters::puts},
    {"already_there", "puts of content that was there", &StoreCounters::already_there},
    {"conflicts", "puts of other content under a key that is taken", &StoreCounters::conflicts},
    {"demoted_bytes", "bytes that moved to a colder tier", &StoreCounters::demoted_bytes},
    {"dropped_segments", "segments that were dropped", &StoreCounters::dropped_segments},
    {"dropped_pages", "pages of which nothing is left", &StoreCounters::dropped_pages},
    {"cooled_pages", "hot pages that became their cold form", &StoreCounters::cooled_pages},
    {"cooled_bytes", "bytes that this saved", &StoreCounters::cooled_bytes},
    {"corrupt_segments", "segments that failed their digest", &StoreCounters::corrupt_segments},
    {"lost_segments", "segments that were not where they should be", &StoreCounters::lost_segments},
    {"recovered_pages", "pages that came back at start", &StoreCounters::recovered_pages},
    {"damaged_records", "records that were skipped at start", &StoreCounters::damaged_records},
    {"damaged_logs", "logs of the disk's database that were damaged", &StoreCounters::damaged_logs},
    {"locked_records", "records that are sealed with keys that are not here",
     &StoreCounters::locked_records},
    {"expired_leases", "leases that ran out", &StoreCounters::expired_leases},
    {"disk_errors", "errors of the disk", &StoreCounters::disk_errors},
    {"scrubbed_bytes", "bytes at rest that were verified in the background",
     &StoreCounters::scrubbed_bytes},
};

struct TierRow {
  const char* name;
  const char* help;
  uint64_t TierUsage::*value;
};
constexpr TierRow kTierGauges[] = {
    {"kvstow_tier_budget_bytes", "encoded bytes that the tier may hold", &TierUsage::budget_bytes},
    {"kvstow_tier_encoded_bytes", "encoded bytes that the tier holds", &TierUsage::encoded_bytes},
    {"kvstow_tier_raw_bytes", "raw bytes of the pages whose base is here", &TierUsage::raw_bytes},
    {"kvstow_tier_pages", "pages whose base is here", &TierUsage::pages},
    {"kvstow_tier_segments", "segments in the tier", &TierUsage::segments},
};

void SampleProcess(Sampled& out) {
  struct rusage use {};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  out.Add(MetricType::Counter, "process_cpu_seconds_total", "CPU time used", {},
          seconds(use.ru_utime) + seconds(use.ru_stime));
  out.Gauge("process_max_resident_memory_bytes", "most memory ever resident",
            static_cast<double>(use.ru_maxrss) * 1024);
}

void SampleEvents(const MetricsSnapshot& snapshot, Sampled& out) {
  out.Gauge("kvstow_kv_event_queue", "changes of pages that wait to be published as KV events",
            static_cast<double>(snapshot.event_queue));
  const auto count = [&](const char* name, const char* help, uint64_t value,
                         const Labels& labels = {}) {
    out.Add(MetricType::Counter, name, help, labels, static_cast<double>(value));
  };
  constexpr char kEvents[] = "KV events: blocks that were stored or removed, and clearings of all";
  count("kvstow_kv_events_total", kEvents, snapshot.events_stored, {{"type", "stored"}});
  count("kvstow_kv_events_total", kEvents, snapshot.events_removed, {{"type", "removed"}});
  count("kvstow_kv_events_total", kEvents, snapshot.events_cleared, {{"type", "cleared"}});
  count("kvstow_kv_event_batches_total", "batches of KV events", snapshot.event_batches);
  count("kvstow_kv_events_lost_total",
        "changes of pages that were not published, because the publisher was too slow",
        snapshot.events_lost);
  count("kvstow_kv_event_replays_total", "replays of KV events that were asked for",
        snapshot.event_replays);
}

void SampleGpu(const MetricsSnapshot& snapshot, Sampled& out) {
  out.Gauge("kvstow_local_gpu_bytes", "bytes of the GPU's memory that workers share",
            static_cast<double>(snapshot.local_gpu_bytes));
  out.Gauge("kvstow_device_codec_bytes", "bytes of the GPU's memory that calibrations take, about",
            static_cast<double>(snapshot.device_codec_bytes));
}

void SampleAccess(const Access::Counters& counters, Sampled& out) {
  const auto count = [&](const char* name, const char* help, uint64_t value, const Labels& labels) {
    out.Add(MetricType::Counter, name, help, labels, static_cast<double>(value));
  };
  for (size_t i = 0; i < counters.refusals.size(); ++i) {
    count("kvstow_access_refused_total",
          "calls and connections that were refused for who they are, by reason",
          counters.refusals[i], {{"reason", kRefusals[i]}});
  }
  constexpr char kReloads[] = "times that the access file was read again, by result";
  count("kvstow_access_reloads_total", kReloads, counters.reloads, {{"result", "ok"}});
  count("kvstow_access_reloads_total", kReloads, counters.failed_reloads, {{"result", "failed"}});
}

void SampleUsage(const MetricsSnapshot& snapshot, Sampled& sampled) {
  for (const TierRow& row : kTierGauges) {
    for (int t = 0; t < kTiers; ++t) {
      sampled.Gauge(row.name, row.help, static_cast<double>(snapshot.usage.tiers[t].*row.value),
                    {{"tier", TierName(static_cast<TierId>(t))}});
    }
  }
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    sampled.Gauge(name, help, static_cast<double>(value));
  };
  gauge("kvstow_pages", "pages that are stored", snapshot.usage.pages);
  gauge("kvstow_raw_bytes", "raw bytes of those pages", snapshot.usage.raw_bytes);
  gauge("kvstow_encoded_bytes", "encoded bytes, each page once", snapshot.usage.encoded_bytes);
  gauge("kvstow_leases", "leases that live", snapshot.usage.leases);
  gauge("kvstow_leased_pages", "pages that they promise, as often as they do",
        snapshot.usage.leased_pages);
  gauge("kvstow_pinned_pages", "pages that are pinned", snapshot.usage.pinned_pages);
  gauge("kvstow_index_bytes", "bytes of memory that the index of pages takes, about",
        snapshot.usage.index_bytes);
  gauge("kvstow_index_budget_bytes", "bytes of memory that it may take, 0 = any",
        snapshot.index_budget);
}

// Series cost the one who scrapes: the tenants that hold the most have one each.
constexpr size_t kMaxNamedTenants = 20;

void AddTo(MetricsSnapshot::Tenant& sum, const MetricsSnapshot::Tenant& tenant) {
  sum.usage.Add(tenant.usage, 1);
  for (int t = 0; t < kTiers; ++t) sum.guarantee[t] += tenant.guarantee[t];
  sum.streams += tenant.streams;
  sum.put_bytes += tenant.put_bytes;
  sum.get_bytes += tenant.get_bytes;
  sum.refused += tenant.refused;
}

void SampleTenants(const MetricsSnapshot& snapshot, Sampled& out) {
  using Tenant = MetricsSnapshot::Tenant;
  std::vector<Tenant> tenants = snapshot.tenants;
  std::stable_sort(tenants.begin(), tenants.end(), [](const Tenant& a, const Tenant& b) {
    return a.usage.encoded_bytes > b.usage.encoded_bytes;
  });
  // Counters stay monotonic for a name that stays; a tenant may move between a series of its own
  // and "other", which a rate shows as a reset.
  if (tenants.size() > kMaxNamedTenants) {
    Tenant other{.name = "other", .usage = {}};
    for (size_t i = kMaxNamedTenants; i < tenants.size(); ++i) AddTo(other, tenants[i]);
    tenants.resize(kMaxNamedTenants);
    std::erase_if(tenants, [&](const Tenant& tenant) {
      const bool has_that_name = tenant.name == other.name;
      if (has_that_name) AddTo(other, tenant);
      return has_that_name;
    });
    tenants.push_back(std::move(other));
  }
  const auto each = [&](MetricType type, const char* name, const char* help, auto value) {
    for (const Tenant& t : tenants) {
      out.Add(type, name, help, {{"tenant", t.name}}, static_cast<double>(value(t)));
    }
  };
  const auto by_tier = [&](const char* name, const char* help, auto value) {
    for (const Tenant& tenant : tenants) {
      for (int t = 0; t < kTiers; ++t) {
        out.Gauge(name, help, static_cast<double>(value(tenant, t)),
                  {{"tenant", tenant.name}, {"tier", TierName(static_cast<TierId>(t))}});
      }
    }
  };
  by_tier("kvstow_tenant_encoded_bytes", "encoded bytes that the tenant holds in the tier",
          [](const Tenant& tenant, int t) { return tenant.usage.tiers[t].encoded_bytes; });
  by_tier("kvstow_tenant_guarantee_bytes", "bytes that others never push it below",
          [](const Tenant& tenant, int t) { return tenant.guarantee[t]; });
  each(MetricType::Gauge, "kvstow_tenant_pages", "pages that the tenant has",
       [](const Tenant& t) { return t.usage.pages; });
  each(MetricType::Gauge, "kvstow_tenant_streams", "streams of Put and Get that it has open",
       [](const Tenant& t) { return t.streams; });
  each(MetricType::Counter, "kvstow_tenant_put_bytes_total", "payload that it put, as it travels",
       [](const Tenant& t) { return t.put_bytes; });
  each(MetricType::Counter, "kvstow_tenant_get_bytes_total", "payload that it got, as it travels",
       [](const Tenant& t) { return t.get_bytes; });
  each(MetricType::Counter, "kvstow_tenant_refused_total",
       "its streams and pages that were refused for its limits of streams and bandwidth",
       [](const Tenant& t) { return t.refused; });
}

std::string Label(v1::PageStatus status) {
  return absl::AsciiStrToLower(v1::PageStatus_Name(status));
}

}  // namespace

class Metrics::Impl {
 public:
  explicit Impl(absl::string_view version) {
    prometheus::BuildGauge()
        .Name("kvstow_build_info")
        .Help("1; the label is the version")
        .Register(registry)
        .Add({{"version", std::string(version)}})
        .Set(1);
    for (int s = v1::PageStatus_MIN; s <= v1::PageStatus_MAX; ++s) {
      const auto status = static_cast<v1::PageStatus>(s);
      if (status >= v1::STORED) put_pages.Add({{"result", Label(status)}});
      if (status >= v1::HIT && status <= v1::NOT_COMPATIBLE) AddGetResult(status);
    }
    AddLabels(reports, "result", {"hit", "miss", "refused"});
    AddLabels(refused, "reason",
              {"no_deadline", "too_many_streams", "put_memory", "get_memory", "leases",
               "calibration_memory"});
    AddLabels(handshakes, "listener", {"direct", "http"});
    AddLabels(ended, "reason", {"idle", "crowded"});
    AddLabels(short_of, "of", {"levels", "error"});
    for (const char* method : {"put", "get"}) {
      for (const char* coder : {"gpu", "cpu"}) {
        local_gpu.Add({{"method", method}, {"coder", coder}});
      }
    }
    for (const char* way : {"encode", "decode"}) {
      for (const char* coder : {"gpu", "cpu"}) device.Add({{"way", way}, {"coder", coder}});
    }
  }

  // Counters are there from the start: Prometheus does not see the first increase of a new one.
  static void AddLabels(Family<Counter>& family, const char* label,
                        std::initializer_list<const char*> values) {
    for (const char* value : values) family.Add({{label, value}});
  }
  void AddGetResult(v1::PageStatus status) {
    if (status != v1::HIT) {
      get_pages.Add({{"result", Label(status)}, {"tier", ""}});
      return;
    }
    for (int t = 0; t < kTiers; ++t) {
      get_pages.Add({{"result", Label(status)}, {"tier", TierName(static_cast<TierId>(t))}});
    }
  }

  prometheus::Registry registry;
  Family<Counter>& put_pages =
      Count(registry, "kvstow_put_pages_total", "pages that came on Put streams, by result");
  Family<Counter>& get_pages =
      Count(registry, "kvstow_get_pages_total",
            "pages that were asked for on Get streams, by result and tier");
  Counter& put_raw = Count(registry, "kvstow_put_raw_bytes_total",
                           "raw bytes of the pages that Put streams stored")
                         .Add({});
  Counter& put_stored = Count(registry, "kvstow_put_stored_bytes_total",
                              "encoded bytes of the pages that Put streams stored")
                            .Add({});
  Family<Counter>& reports =
      Count(registry, "kvstow_attention_reports_total", "reports of attention, by result");
  Counter& get_payload =
      Count(registry, "kvstow_get_payload_bytes_total", "payload bytes of pages that hit").Add({});
  Counter& lookups = Count(registry, "kvstow_lookups_total", "calls of Lookup").Add({});
  Counter& lookup_keys =
      Count(registry, "kvstow_lookup_keys_total", "keys that Lookup was asked for").Add({});
  Counter& lookup_hits =
      Count(registry, "kvstow_lookup_hit_keys_total", "leading keys that Lookup found").Add({});
  Counter& lookup_tokens =
      Count(registry, "kvstow_lookup_hit_tokens_total", "tokens of those keys").Add({});
  Family<Counter>& refused =
      Count(registry, "kvstow_refused_calls_total", "calls that were refused, by reason");
  Family<Counter>& handshakes =
      Count(registry, "kvstow_failed_handshakes_total",
            "TLS handshakes that failed: no certificate, a wrong one, or no TLS; by listener");
  Family<Counter>& ended =
      Count(registry, "kvstow_ended_streams_total",
            "streams that were ended because nothing moved on them, by reason");
  Counter& corrupt =
      Count(registry, "kvstow_corrupt_pages_total",
            "pages that failed a check or their decoding when they were read, and were dropped")
          .Add({});
  Counter& missing_calibration =
      Count(registry, "kvstow_missing_calibration_total",
            "pages that were a miss because their calibration is not loaded")
          .Add({});
  Family<Counter>& short_of =
      Count(registry, "kvstow_short_of_fidelity_total",
            "pages that were a miss because they have less than was asked for, by what");
  Counter& reaped = Count(registry, "kvstow_reaped_pages_total",
                          "half-sent pages that were dropped because nobody went on")
                        .Add({});
  Histogram& encode = prometheus::BuildHistogram()
                          .Name("kvstow_encode_seconds")
                          .Help("time to encode a page")
                          .Register(registry)
                          .Add({}, TimeBuckets());
  Histogram& decode = prometheus::BuildHistogram()
                          .Name("kvstow_decode_seconds")
                          .Help("time to decode a page")
                          .Register(registry)
                          .Add({}, TimeBuckets());
  Family<Counter>& codec_bytes =
      Count(registry, "kvstow_codec_raw_bytes_total", "raw bytes of pages that were coded, by way");
  Counter& encoded_bytes = codec_bytes.Add({{"way", "encode"}});
  Counter& decoded_bytes = codec_bytes.Add({{"way", "decode"}});
  std::atomic<uint64_t> encode_ns = 0, decode_ns = 0;
  Histogram& cooling = prometheus::BuildHistogram()
                           .Name("kvstow_cooling_seconds")
                           .Help("time to make the cold form of a page from its hot one")
                           .Register(registry)
                           .Add({}, TimeBuckets());
  Family<Gauge>& streams = prometheus::BuildGauge()
                               .Name("kvstow_open_streams")
                               .Help("streams that are open, by method")
                               .Register(registry);
  Family<Counter>& local = Count(registry, "kvstow_local_pages_total",
                                 "pages that went through shared memory, by method");
  Counter& local_puts = local.Add({{"method", "put"}});
  Counter& local_gets = local.Add({{"method", "get"}});
  Family<Counter>& local_gpu =
      Count(registry, "kvstow_local_gpu_pages_total",
            "pages that went through shared memory of the GPU, by method and by what coded them");
  Family<Counter>& device =
      Count(registry, "kvstow_device_pages_total",
            "pages of calibrated recipes on a server with a GPU, by way and by what coded them");
  Family<Counter>& direct = Count(registry, "kvstow_direct_pages_total",
                                  "pages that went over direct connections, by method");
  Counter& direct_puts = direct.Add({{"method", "put"}});
  Counter& direct_gets = direct.Add({{"method", "get"}});
  Gauge& put_streams = streams.Add({{"method", "put"}});
  Gauge& get_streams = streams.Add({{"method", "get"}});
};

Metrics::Metrics(absl::string_view version) : impl_(std::make_unique<Impl>(version)) {}
Metrics::~Metrics() = default;

void Metrics::CountPut(v1::PageStatus status, uint64_t raw_bytes, uint64_t stored_bytes) {
  impl_->put_pages.Add({{"result", Label(status)}}).Increment();
  if (status != v1::STORED) return;
  impl_->put_raw.Increment(static_cast<double>(raw_bytes));
  impl_->put_stored.Increment(static_cast<double>(stored_bytes));
}

void Metrics::CountGet(v1::PageStatus status, absl::string_view tier, uint64_t payload_bytes) {
  impl_->get_pages.Add({{"result", Label(status)}, {"tier", std::string(tier)}}).Increment();
  impl_->get_payload.Increment(static_cast<double>(payload_bytes));
}

void Metrics::NotePage(StreamKind kind, absl::string_view space, v1::PageStatus status,
                       Time begin) {
  const bool failed = status != v1::HIT && status != v1::MISS && status != v1::STORED &&
                      status != v1::ALREADY_THERE;
  const Time now = Clock::Real().Now();
  calls_.Note(kind == StreamKind::kGet ? "Get page" : "Put page", space,
              failed ? v1::PageStatus_Name(status) : "OK", now - begin, now);
}

void Metrics::CountReport(v1::PageStatus status) {
  impl_->reports.Add({{"result", Label(status)}}).Increment();
}

void Metrics::CountLocal(StreamKind kind) {
  (kind == StreamKind::kPut ? impl_->local_puts : impl_->local_gets).Increment();
}

void Metrics::CountDirect(StreamKind kind) {
  (kind == StreamKind::kPut ? impl_->direct_puts : impl_->direct_gets).Increment();
}

void Metrics::CountLocalGpu(StreamKind kind, bool coded_there) {
  impl_->local_gpu
      .Add({{"method", kind == StreamKind::kPut ? "put" : "get"},
            {"coder", coded_there ? "gpu" : "cpu"}})
      .Increment();
}

void Metrics::CountDevice(CodecWay way, bool on_gpu) {
  impl_->device
      .Add({{"way", way == CodecWay::kEncode ? "encode" : "decode"},
            {"coder", on_gpu ? "gpu" : "cpu"}})
      .Increment();
}

void Metrics::CountLookup(uint64_t asked_keys, uint64_t found_keys, uint64_t found_tokens) {
  impl_->lookups.Increment();
  impl_->lookup_keys.Increment(static_cast<double>(asked_keys));
  impl_->lookup_hits.Increment(static_cast<double>(found_keys));
  impl_->lookup_tokens.Increment(static_cast<double>(found_tokens));
}

void Metrics::CountRefusedCall(absl::string_view why) {
  impl_->refused.Add({{"reason", std::string(why)}}).Increment();
}

void Metrics::CountEndedStream(absl::string_view why) {
  impl_->ended.Add({{"reason", std::string(why)}}).Increment();
}

void Metrics::CountShortOf(absl::string_view what) {
  impl_->short_of.Add({{"of", std::string(what)}}).Increment();
}

void Metrics::CountCorrupt() { impl_->corrupt.Increment(); }
void Metrics::CountMissingCalibration() { impl_->missing_calibration.Increment(); }
void Metrics::CountFailedHandshake(absl::string_view listener) {
  impl_->handshakes.Add({{"listener", std::string(listener)}}).Increment();
}
void Metrics::CountReaped(uint64_t tickets) {
  impl_->reaped.Increment(static_cast<double>(tickets));
}

void Metrics::ObserveEncode(Duration time, uint64_t raw_bytes) {
  impl_->encode.Observe(std::chrono::duration<double>(time).count());
  impl_->encoded_bytes.Increment(static_cast<double>(raw_bytes));
  impl_->encode_ns += std::chrono::nanoseconds(time).count();
}
void Metrics::ObserveDecode(Duration time, uint64_t raw_bytes) {
  impl_->decode.Observe(std::chrono::duration<double>(time).count());
  impl_->decoded_bytes.Increment(static_cast<double>(raw_bytes));
  impl_->decode_ns += std::chrono::nanoseconds(time).count();
}

std::vector<std::pair<std::string, uint64_t>> Metrics::CodecRows() const {
  const auto bytes = [](const Counter& c) { return static_cast<uint64_t>(c.Value()); };
  return {{"encoded_raw_bytes", bytes(impl_->encoded_bytes)},
          {"encode_us", impl_->encode_ns / 1000},
          {"decoded_raw_bytes", bytes(impl_->decoded_bytes)},
          {"decode_us", impl_->decode_ns / 1000}};
}

void Metrics::ObserveCooling(Duration time) {
  impl_->cooling.Observe(std::chrono::duration<double>(time).count());
}

void Metrics::AddStreams(StreamKind kind, int change) {
  (kind == StreamKind::kPut ? impl_->put_streams : impl_->get_streams).Increment(change);
}

uint64_t Metrics::open_streams(StreamKind kind) const {
  const Gauge& gauge = kind == StreamKind::kPut ? impl_->put_streams : impl_->get_streams;
  return static_cast<uint64_t>(gauge.Value());
}

void Metrics::Sample(Time now) {
  const auto count = [](const Counter& c) { return static_cast<uint64_t>(c.Value()); };
  history_.Observe(now, {.lookup_keys = count(impl_->lookup_keys),
                         .lookup_hit_keys = count(impl_->lookup_hits),
                         .put_raw_bytes = count(impl_->put_raw),
                         .put_stored_bytes = count(impl_->put_stored),
                         .get_payload_bytes = count(impl_->get_payload),
                         .failed_calls = calls_.failed()});
  calls_.DropOld(now);
}

std::string Metrics::Text(const MetricsSnapshot& snapshot) const {
  Sampled sampled;
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    sampled.Gauge(name, help, static_cast<double>(value));
  };
  SampleUsage(snapshot, sampled);
  gauge("kvstow_spaces", "spaces that are open", snapshot.spaces);
  gauge("kvstow_staged_bytes", "bytes of pages that are on their way in", snapshot.staged_bytes);
  gauge("kvstow_get_bytes", "bytes that are held for pages on their way out", snapshot.get_bytes);
  gauge("kvstow_put_bytes", "bytes that are held for pages on their way in", snapshot.put_bytes);
  gauge("kvstow_waiting_gets", "pages that wait for such bytes", snapshot.waiting_gets);
  gauge("kvstow_local_sessions", "workers that share memory with the server",
        snapshot.local_sessions);
  gauge("kvstow_local_bytes", "bytes of memory that they share", snapshot.local_bytes);
  gauge("kvstow_direct_connections", "connections of workers that fetch and put beside gRPC",
        snapshot.direct_connections);
  for (const auto& [listener, refused] :
       {std::pair{"direct", snapshot.direct_refused}, std::pair{"local", snapshot.local_refused}}) {
    sampled.Add(MetricType::Counter, "kvstow_refused_connections_total",
                "connections that were hung up on: too many, or no thread could be started",
                {{"listener", listener}}, static_cast<double>(refused));
  }
  SampleGpu(snapshot, sampled);
  gauge("kvstow_attention_bytes", "bytes of pooled reports of attention", snapshot.attention_bytes);
  gauge("kvstow_attention_pages", "pages that reports are pooled of", snapshot.attention_pages);
  gauge("kvstow_put_queue_pages", "pages that wait to be encoded", snapshot.put_queue);
  gauge("kvstow_get_queue_pages", "pages that wait to be read", snapshot.get_queue);
  SampleAccess(snapshot.access, sampled);
  gauge("kvstow_data_keys", "keys that encrypt what is on disk", snapshot.data_keys);
  gauge("kvstow_locked_data_keys", "keys that no master key unwraps", snapshot.locked_data_keys);
  for (const std::vector<MetricRow>* rows : {&snapshot.fits, &snapshot.remote}) {
    for (const MetricRow& row : *rows) {
      const bool counter = absl::EndsWith(row.name, "_total");
      sampled.Add(counter ? MetricType::Counter : MetricType::Gauge,
                  absl::StrCat("kvstow_", row.name), row.help, {}, static_cast<double>(row.value));
    }
  }
  SampleEvents(snapshot, sampled);
  SampleTenants(snapshot, sampled);
  sampled.Add(MetricType::Counter, "kvstow_tls_broken_reloads_total",
              "changes of certificates and keys that were not taken, as they are broken", {},
              static_cast<double>(snapshot.tls_broken_reloads));
  gauge("kvstow_ready", "1 while the server takes calls", snapshot.ready ? 1 : 0);
  sampled.Add(MetricType::Counter, "kvstow_space_mismatches_total",
              "calls that named a space by another space's fingerprint", {},
              static_cast<double>(snapshot.space_mismatches));
  sampled.Add(MetricType::Counter, "kvstow_failed_calls_total",
              "calls, and pages of Get and Put, that failed; a miss is no failure", {},
              static_cast<double>(calls_.failed()));
  for (const CounterRow& row : kStoreCounters) {
    sampled.Add(MetricType::Counter, absl::StrCat("kvstow_store_", row.name, "_total"), row.help,
                {}, static_cast<double>(snapshot.counters.*row.value));
  }
  SampleProcess(sampled);

  std::vector<MetricFamily> families = impl_->registry.Collect();
  for (MetricFamily& family : std::move(sampled).Take()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

std::vector<std::pair<std::string, uint64_t>> CounterRows(const StoreCounters& counters) {
  std::vector<std::pair<std::string, uint64_t>> out;
  for (const CounterRow& row : kStoreCounters) out.emplace_back(row.name, counters.*row.value);
  return out;
}

}  // namespace kvstow
