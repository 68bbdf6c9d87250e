#include "service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/device/device.h"
#include "proto/wire/chunk.h"
#include "service/access/access.h"
#include "service/access/audit.h"
#include "service/api/admin_service.h"
#include "service/api/call_notes.h"
#include "service/api/gate.h"
#include "service/api/grpc_credentials.h"
#include "service/api/kv_cache_service.h"
#include "service/api/unix_listener.h"
#include "service/events/event_publisher.h"
#include "service/fitting/fit.h"
#include "service/fitting/fit_process.h"
#include "service/fitting/fitter.h"
#include "service/open_store.h"
#include "service/operators/admin_operator.h"
#include "service/operators/drain.h"
#include "service/operators/kv_operator.h"
#include "service/operators/quota_operator.h"
#include "service/operators/tenant_operator.h"
#include "service/ops/address.h"
#include "service/ops/http.h"
#include "service/ops/listeners.h"
#include "service/ops/status_page.h"
#include "service/pages/attention_reports.h"
#include "service/pages/device_coder.h"
#include "service/pages/page_cooler.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/messages.h"
#include "service/spaces/space_record.h"
#include "service/transports/direct_server.h"
#include "service/transports/local_gpu.h"
#include "service/transports/local_sessions.h"
#include "storage/store/scrubber.h"

namespace kvstow {
namespace {

constexpr char kServiceName[] = "kvstow.v1.KvCache";

// gRPC could not listen at an address, and does not say why. So this tries.
absl::Status WhyNotListening(absl::string_view setting, const Address& address) {
  const absl::StatusOr<Descriptor> tried = ListenAt(setting, address);
  if (!tried.ok()) return tried.status();
  if (!address.path.empty()) unlink(address.path.c_str());
  return absl::UnavailableError(absl::StrCat(setting, ": the server could not listen: try again"));
}

constexpr size_t kAdminThreads = 2;
constexpr size_t kFarThreads = 8;
constexpr uint64_t kAttentionBytes = uint64_t{256} << 20;  // of pooled reports

ServerFacts ServerFactsOf(const Config& config, const Device* gpu, Time started) {
  return {.version = Version(),
          .device = gpu != nullptr ? gpu->name() : HostDevice().name(),
          .libraries = LibraryVersions(),
          .config = Describe(config),
          .started = started};
}

std::map<std::string, TenantLimits> LimitsOf(const Access& access) {
  std::map<std::string, TenantLimits> out;
  for (const std::string& tenant : access.Tenants()) out[tenant] = access.Limits(tenant);
  return out;
}

// The keys of what tells of pages. With a master key and no disk there are none: then it is not
// written.
std::shared_ptr<DataKeys> KeysOfTables(const OpenedStore& opened) {
  return opened.masters == nullptr ? NoDataKeys() : std::shared_ptr<DataKeys>(opened.keys);
}

AdmissionLimits AdmissionLimitsOf(const Config& config) {
  return {.get_bytes = config.get_bytes,
          .put_bytes = config.put_bytes,
          .streams = config.max_streams,
          .idle = config.stream_idle};
}

// How routers know a space: not at all when it is one session's own, of a tenant that does not want
// it, or not of the first rank. All ranks of an engine store the same blocks, so those of one rank
// say it.
std::optional<EventLog::Label> LabelOf(const Space* space, const Access& access) {
  if (space == nullptr || space->promise.is_private || space->spec.rank != 0) return std::nullopt;
  if (!access.PublishesKvEvents(space->tenant)) return std::nullopt;
  return EventLog::Label{.model = space->spec.model, .adapter = space->spec.adapter};
}

// The tenants of whose pages routers are told.
std::vector<std::string> PublishedTenants(const Access& access) {
  std::vector<std::string> out = access.Tenants();
  std::erase_if(out, [&](const std::string& name) { return !access.PublishesKvEvents(name); });
  return out;
}

// Where operators call.
enum class AdminPlace { kNowhere, kOnListen, kApart };
AdminPlace AdminPlaceOf(const Config& config, const Address& listen, const Access& access) {
  if (config.admin_listen == "off") return AdminPlace::kNowhere;
  if (config.admin_listen == "auto") {
    const bool safe = access.has_identities() || listen.loopback();
    return safe ? AdminPlace::kOnListen : AdminPlace::kNowhere;
  }
  const bool same =
      config.admin_listen == config.listen && (listen.port != 0 || listen.host.empty());
  return same ? AdminPlace::kOnListen : AdminPlace::kApart;
}

// Takes reflection out of one server: gRPC's own switch is for the whole process.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const std::string reflection = grpc::reflection::ProtoServerReflectionPlugin().name();
    std::erase_if(*plugins, [&](const auto& plugin) { return plugin->name() == reflection; });
  }
};

void SetArguments(grpc::ServerBuilder& builder, const Access& access) {
  // Strangers need not know what there is; who has an identity has the .proto files too.
  if (access.has_identities()) builder.SetOption(std::make_unique<WithoutReflection>());
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Pages are compressed already, and a decompressor is a way to fill memory.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  const auto set = [&](const char* name, int value) { builder.AddChannelArgument(name, value); };
  set(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second server on this port must fail
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, 128);
  set(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  // Dead and abusive peers.
  set(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  // Bulk: fewer, larger frames and reads; measured to cut the tail of stream latency.
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 << 20);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20);
}

RemoteTier::Options RemoteOptionsOf(const Config& config, const TenantTable& tenants) {
  return {
      .prefix = config.remote_prefix,
      .lookup_wait = config.remote_wait,
      .ttl = config.remote_ttl,
      .bytes_per_second = config.remote_bytes_per_second,
      .limit_of =
          [&tenants](const std::string& tenant) { return tenants.LimitsOf(tenant).remote_bytes; },
      .count_levels = &CountWholeLevels};
}

}  // namespace

// Members stand in the order of construction: what is used by others comes before them.
class Server::Impl {
 public:
  Impl(const Config& config, const ServerOptions& options, std::unique_ptr<Access> access,
       std::unique_ptr<EventQueue> events, std::unique_ptr<TenantTable> tenants, OpenedStore opened,
       std::shared_ptr<TlsContext> tls, Time started)
      : options_(options),
        config_(config),
        tls_(std::move(tls)),
        started_(started),
        access_(std::move(access)),
        events_(std::move(events)),
        tenants_(std::move(tenants)),
        gpu_(std::move(opened.gpu)),
        sharing_(std::move(opened.sharing)),
        metrics_(Version()),
        calibrations_(config.calibrations, config.disk_path, KeysOfTables(opened)),
        spaces_(
            {.default_recipe = config.recipe,
             .max_spaces = config.max_spaces,
             .access = access_.get(),
             .tenants = tenants_.get()},
            calibrations_, [this] { return store_->residency().NewSpaceId(); },
            [this](const SpaceRecord& record) { return store_->SaveSpace(record); }),
        coder_(options.gpu != nullptr ? options.gpu : gpu_.get(), calibrations_.store(),
               options.device_coder),
        cooler_(spaces_, calibrations_.store(), attention_, metrics_, coder_),
        masters_(opened.masters),
        keys_(std::move(opened.keys)),
        store_(std::move(opened.store)),
        staging_({.ttl = options.staging_ttl}),
        remote_(RemoteOptionsOf(config, *tenants_), std::move(opened.remote), masters_, *store_,
                spaces_, calibrations_,
                [this](const PageName& name, const SharedBytes& header,
                       std::span<const SharedBytes> bodies) {
                  return cooler_.Cool(name, header, bodies);
                }),
        reader_(*store_, calibrations_.store(), metrics_, tenants_.get(), &remote_, coder_),
        reports_(*store_, attention_, metrics_),
        writer_(*store_, reports_, metrics_, !config.disk_path.empty(), &remote_),
        op_(*store_, spaces_, calibrations_, /*fits=*/WhyNoFits().empty(), reports_, metrics_,
            remote_),
        admin_op_(
            *store_, spaces_, reader_, metrics_, [this] { return Snapshot(); },
            ServerFactsOf(config, gpu_.get(), started)),
        quotas_(*store_, *tenants_, config.low_watermark),
        tenant_op_(*store_, *tenants_, spaces_, calibrations_, keys_.get(), remote_),
        drain_(
            *store_, admission_, metrics_, [this](bool serving) { SetServing(serving); },
            [this] { return Snapshot(); }) {
    tenants_->TellStore([this](std::span<const std::pair<TenantId, TenantShare>> shares) {
      store_->cooling().SetShares(shares);
    });
    store_->cooling().SetColdForms(cooler_.Forms());
  }

  absl::Status Start();
  absl::Status Reload();
  absl::Status ReloadKeys();
  void WatchRemoteKeys();
  absl::Status Stop();

  const std::string& address() const { return address_; }
  const std::string& http_address() const { return http_address_; }
  const std::string& admin_address() const { return admin_address_; }
  TieredStore& store() { return *store_; }
  const Staging& staging() const { return staging_; }
  RemoteTier& remote() { return remote_; }

 private:
  void DropOlderSpaces();
  // Why no cold forms are fitted; "" = they are.
  std::string WhyNoFits() const;
  void StartFitter();
  absl::Status StartLocal();
  absl::Status StartDirect();
  absl::Status StartEvents();
  absl::Status StartHttp();
  // Credentials of a gRPC listener: TLS, but not on a UNIX socket.
  std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const Address& address);
  absl::Status StartGrpc();
  absl::Status StartAdmin(const std::string& address);
  void SetServing(bool serving);  // for health checks
  void Reap();
  MetricsSnapshot Snapshot();
  std::vector<MetricsSnapshot::Tenant> Tenants();
  StatusFacts Facts();

  const ServerOptions options_;
  const Config config_;
  const std::shared_ptr<TlsContext> tls_;  // null: none
  const Time started_;
  const std::unique_ptr<Access> access_;
  const std::unique_ptr<EventQueue> events_;  // the store's observer; null: nobody is told
  const std::unique_ptr<TenantTable> tenants_;
  const std::unique_ptr<Device> gpu_;
  const std::unique_ptr<DeviceSharing> sharing_;
  Metrics metrics_;
  Calibrations calibrations_;
  Spaces spaces_;
  AttentionPool attention_{kAttentionBytes};
  DeviceCoder coder_;
  const PageCooler cooler_;
  const std::shared_ptr<MasterKeys> masters_;  // null: what leaves memory is in clear
  const std::shared_ptr<KeyRing> keys_;        // null: the disk is in clear
  const std::unique_ptr<TieredStore> store_;   // its background calls cooler_
  Admission admission_{AdmissionLimitsOf(config_), metrics_, *options_.clock};
  Staging staging_;
  RemoteTier remote_;
  PageReader reader_;
  AttentionReports reports_;
  PageWriter writer_;
  PutParts puts_{staging_, writer_, admission_, metrics_, tenants_.get()};
  KvOperator op_;
  AdminOperator admin_op_;
  QuotaOperator quotas_;
  TenantOperator tenant_op_;
  Drain drain_;
  const size_t threads_ = std::max(2u, std::thread::hardware_concurrency());
  WorkerPool put_workers_{"kvstow-put", threads_};
  WorkerPool get_workers_{"kvstow-get", threads_};
  // They wait for the remote tier, and nothing else waits for them.
  WorkerPool far_workers_{"kvstow-far", remote_.on() ? kFarThreads : 1};
  WorkerPool admin_workers_{"kvstow-admin", kAdminThreads};
  // Work that may take minutes: one at a time, and nothing else waits for it.
  WorkerPool verify_workers_{"kvstow-verify", 1};
  WorkerPool evict_workers_{"kvstow-evict", 1};
  WorkerPool drain_workers_{"kvstow-drain", 1};
  StreamParts streams_{spaces_,      puts_,        reader_,      metrics_,       admission_,
                       put_workers_, get_workers_, far_workers_, options_.limits};
  std::optional<LocalGpu> local_gpu_;
  std::unique_ptr<LocalSessions> local_;       // null: none
  std::unique_ptr<DirectServer> direct_;       // null: none
  std::unique_ptr<EventPublisher> publisher_;  // null: none
  PeerUsers users_;
  Gate gate_{*access_, metrics_, [this](absl::string_view peer) { return users_.Find(peer); }};
  SendingPlaces sending_{calibrations_, *options_.clock};
  std::unique_ptr<grpc::Service> kv_cache_ =
      MakeKvCacheService(gate_, op_, sending_, streams_, admin_workers_);
  std::unique_ptr<grpc::Service> admin_ =
      MakeAdminService(gate_, {admin_op_, quotas_, drain_, tenant_op_},
                       {admin_workers_, verify_workers_, evict_workers_, drain_workers_});
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::Server> grpc_;
  // Null: operators call grpc_, or nobody. Else it serves them everything, so that they need no
  // other address.
  std::unique_ptr<grpc::Service> kv_cache_of_admin_;
  std::unique_ptr<grpc::Server> admin_grpc_;
  // Where callers have identities and `listen` or `admin-listen` is a UNIX socket.
  std::unique_ptr<UnixListener> unix_, admin_unix_;
  std::unique_ptr<HttpServer> http_;
  std::string address_, http_address_, admin_address_;
  bool stopped_ = false;

  Mutex mu_;
  CondVar stop_;
  bool reaping_ KVSTOW_GUARDED_BY(mu_) = true;
  std::thread reaper_;
  std::optional<Scrubber> scrubber_;
  std::optional<Fitter> fitter_;
};

// Where two records have one name, Spaces::Recover took the newer. No name leads to the pages of
// the older one. They go: else they would come back with the name when the newer one is dropped.
void Server::Impl::DropOlderSpaces() {
  const auto spaces = spaces_.All();
  for (const SpaceRecord& record : store_->recovered_spaces()) {
    if (spaces_.Find(record.id) != nullptr) continue;
    const auto older = ParseSpace(record.bytes.span(), calibrations_);
    if (!older.ok() || (*older)->id != record.id) continue;  // it was left out
    if (!record.tenant.empty() && record.tenant != (*older)->tenant) continue;
    const auto newer = std::ranges::find_if(spaces, [&](const auto& space) {
      return space->tenant == (*older)->tenant && space->name == (*older)->name;
    });
    if (newer == spaces.end() || (*newer)->id < record.id) continue;
    Log().warn(
        "space '{}' was made anew while its record could not be read: the newer one (id {}, {} "
        "pages) stays, and the older one (id {}, {} pages) is dropped",
        (*older)->name, (*newer)->id, store_->residency().Usage((*newer)->id).pages, record.id,
        store_->residency().Usage(record.id).pages);
    if (const absl::Status dropped = store_->DropSpace(record.id); !dropped.ok()) {
      Log().warn("space '{}': {}", (*older)->name, std::string(dropped.message()));
    }
  }
}

absl::Status Server::Impl::Start() {
  KVSTOW_RETURN_IF_ERROR(calibrations_.Load());
  if (const size_t left_out = spaces_.Recover(store_->recovered_spaces()); left_out > 0) {
    Log().warn("{} spaces of the store cannot be read by this version; their pages are lost to it",
               left_out);
  }
  DropOlderSpaces();
  WatchRemoteKeys();
  StartFitter();
  for (const std::string& warning : WarningsOfListeners(config_)) Log().warn("{}", warning);
  KVSTOW_RETURN_IF_ERROR(StartLocal());
  KVSTOW_RETURN_IF_ERROR(StartDirect());
  KVSTOW_RETURN_IF_ERROR(StartEvents());
  KVSTOW_RETURN_IF_ERROR(StartHttp());
  KVSTOW_RETURN_IF_ERROR(StartGrpc());
  reaper_ = std::thread([this] { Reap(); });
  scrubber_.emplace(*store_, config_.scrub_bytes_per_second);
  const Duration took = Clock::Real().Now() - started_;
  admin_op_.SetReady(true, took);
  SetServing(true);
  Log().info("ready in {} ms: {} spaces, {} pages came back",
             std::chrono::duration_cast<std::chrono::milliseconds>(took).count(),
             spaces_.All().size(), store_->residency().Counters().recovered_pages);
  // Programs that start a server read the addresses here.
  Log().info("listening grpc={} http={} direct={} admin={} tls={}", address_,
             http_address_.empty() ? "off" : http_address_,
             direct_ == nullptr ? "off" : absl::StrCat("port ", direct_->port()),
             admin_address_.empty() ? "off" : admin_address_,
             tls_ == nullptr                 ? "off"
             : config_.tls_client_ca.empty() ? "server"
                                             : "mutual");
  return absl::OkStatus();
}

std::string Server::Impl::WhyNoFits() const {
  return config_.fit_bytes == 0 ? "fits are off: fit-bytes is 0" : "";
}

void Server::Impl::StartFitter() {
  Fitter::Options options{.look_every = options_.fit_look_every,
                          .least_rest = options_.fit_least_rest,
                          .clock = options_.clock};
  options.off = WhyNoFits();
  // A fit takes some five times its tables, and pages beside them.
  options.most_table_bytes = config_.fit_bytes / 6;
  options.sample.bytes = config_.fit_bytes / 8;
  options.run = [this](const FitJob& job, const std::function<bool()>& stop) {
    return options_.fit_program.empty()
               ? RunFit(job)
               : RunFitProcess(job, options_.fit_program, config_.fit_bytes, stop);
  };
  fitter_.emplace(std::move(options), *store_, spaces_, calibrations_);
}

absl::Status Server::Impl::StartLocal() {
  if (config_.local_socket.empty()) return absl::OkStatus();
  Device* const gpu = options_.gpu != nullptr ? options_.gpu : gpu_.get();
  DeviceSharing* const sharing =
      options_.gpu_sharing != nullptr ? options_.gpu_sharing : sharing_.get();
  if (gpu != nullptr && sharing != nullptr && config_.local_gpu_bytes > 0) {
    local_gpu_.emplace(*gpu, *sharing, config_.local_gpu_bytes, coder_);
  }
  auto local =
      LocalSessions::Start({.socket = config_.local_socket, .bytes = config_.local_bytes},
                           {spaces_, puts_, reader_, metrics_, admission_,
                            local_gpu_.has_value() ? &*local_gpu_ : nullptr, access_.get()});
  if (!local.ok()) {
    return absl::Status(local.status().code(),
                        absl::StrCat("local-socket: ", local.status().message()));
  }
  local_ = *std::move(local);
  streams_.local = local_.get();
  return absl::OkStatus();
}

absl::Status Server::Impl::StartDirect() {
  KVSTOW_ASSIGN_OR_RETURN(const Address listen, ParseAddress(config_.listen));
  Address address{.host = listen.host};
  if (config_.direct_listen == "off" || (config_.direct_listen == "auto" && listen.host.empty()))
    return absl::OkStatus();
  if (config_.direct_listen != "auto") {
    KVSTOW_ASSIGN_OR_RETURN(address, ParseAddress(config_.direct_listen));
  }
  auto direct = DirectServer::Start(
      {.host = address.host, .port = address.port, .idle_time = config_.idle_timeout, .tls = tls_},
      {spaces_, puts_, reader_, metrics_, admission_, op_, access_.get(), nullptr, options_.clock});
  if (!direct.ok()) {
    return absl::Status(direct.status().code(),
                        absl::StrCat("direct-listen: ", direct.status().message()));
  }
  direct_ = *std::move(direct);
  streams_.direct = direct_.get();
  return absl::OkStatus();
}

absl::Status Server::Impl::StartEvents() {
  if (events_ == nullptr) return absl::OkStatus();
  const auto address = [](const std::string& text) { return text == "off" ? "" : text; };
  KVSTOW_ASSIGN_OR_RETURN(
      publisher_,
      EventPublisher::Start(
          {.listen = address(config_.kv_events_listen),
           .connect = config_.kv_events_connect,
           .replay_listen = address(config_.kv_events_replay_listen),
           .log = {.name = config_.kv_events_name}},
          *events_, [this](SpaceId id) { return LabelOf(spaces_.Find(id).get(), *access_); },
          [this] { store_->residency().TellPages(*events_); }));
  Log().info("KV events listening={} replays={} topics=kv@{}@MODEL",
             publisher_->address().empty() ? "off" : publisher_->address(),
             publisher_->replay_address().empty() ? "off" : publisher_->replay_address(),
             config_.kv_events_name);
  return absl::OkStatus();
}

absl::Status Server::Impl::StartHttp() {
  if (config_.http_listen == "off") return absl::OkStatus();
  KVSTOW_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.http_listen));
  HttpPages pages;
  pages.handshake_failed = [this] { metrics_.CountFailedHandshake("http"); };
  pages.ready = [this] { return admin_op_.ready(); };
  pages.metrics = [this] { return metrics_.Text(Snapshot()); };
  pages.parts = [this] { return StatusParts(Facts()); };
  pages.status = [this] { return StatusPage(StatusParts(Facts())); };
  KVSTOW_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(address, std::move(pages), address.loopback() ? nullptr : tls_));
  http_address_ = http_->address();
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> Server::Impl::CredentialsOf(const Address& address) {
  return address.path.empty() ? credentials_ : grpc::InsecureServerCredentials();
}

absl::Status Server::Impl::StartGrpc() {
  KVSTOW_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.listen));
  grpc::EnableDefaultHealthCheckService(true);
  static const bool reflection = (grpc::reflection::InitProtoReflectionServerBuilderPlugin(), true);
  (void)reflection;  // once a process
  grpc::ServerBuilder builder;
  SetArguments(builder, *access_);
  int port = -1;
  credentials_ = tls_ == nullptr ? grpc::InsecureServerCredentials() : MakeServerCredentials(*tls_);
  const bool by_user = access_->has_identities() && !address.path.empty();
  if (by_user) {
    port = 1;
  } else {
    builder.AddListeningPort(config_.listen, CredentialsOf(address), &port);
  }
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> notes;
  metrics_.calls().LogFrom(config_.slow_call);
  notes.push_back(MakeCallNotes(metrics_.calls()));
  builder.experimental().SetInterceptorCreators(std::move(notes));
  builder.RegisterService(kv_cache_.get());
  const AdminPlace admin = AdminPlaceOf(config_, address, *access_);
  if (admin == AdminPlace::kOnListen) builder.RegisterService(admin_.get());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port <= 0) {
    return WhyNotListening("listen", address);
  }
  SetServing(false);
  if (by_user) {
    KVSTOW_ASSIGN_OR_RETURN(unix_, UnixListener::Start(address.path, *grpc_, users_));
  }
  address_ = address.path.empty()
                 ? absl::StrCat(config_.listen.substr(0, config_.listen.rfind(':')), ":", port)
                 : config_.listen;
  if (admin == AdminPlace::kOnListen) admin_address_ = address_;
  return admin == AdminPlace::kApart ? StartAdmin(config_.admin_listen) : absl::OkStatus();
}

absl::Status Server::Impl::StartAdmin(const std::string& listen) {
  KVSTOW_ASSIGN_OR_RETURN(const Address address, ParseAddress(listen));
  grpc::ServerBuilder builder;
  SetArguments(builder, *access_);
  int port = -1;
  const bool by_user = access_->has_identities() && !address.path.empty();
  if (by_user) {
    port = 1;
  } else {
    builder.AddListeningPort(listen, CredentialsOf(address), &port);
  }
  builder.RegisterService(admin_.get());
  kv_cache_of_admin_ = MakeKvCacheService(gate_, op_, sending_, streams_, admin_workers_);
  builder.RegisterService(kv_cache_of_admin_.get());
  admin_grpc_ = builder.BuildAndStart();
  if (admin_grpc_ == nullptr || port <= 0) {
    return WhyNotListening("admin-listen", address);
  }
  if (by_user) {
    KVSTOW_ASSIGN_OR_RETURN(admin_unix_, UnixListener::Start(address.path, *admin_grpc_, users_));
  }
  admin_address_ =
      address.path.empty() ? absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port) : listen;
  return absl::OkStatus();
}

void Server::Impl::SetServing(bool serving) {
  admin_op_.SetServing(serving);
  for (grpc::Server* const server : {grpc_.get(), admin_grpc_.get()}) {
    if (server == nullptr) continue;
    server->GetHealthCheckService()->SetServingStatus(kServiceName, serving);
  }
}

absl::Status Server::Impl::Reload() {
  const std::vector<std::string> published = PublishedTenants(*access_);
  const absl::Status access = access_->Reload();
  if (events_ != nullptr && PublishedTenants(*access_) != published) events_->StartOver();
  if (access_->has_identities()) Audit("signal HUP", "Reload", config_.access, access);
  if (access.ok() && access_->has_identities()) tenants_->SetLimits(LimitsOf(*access_));
  if (access.ok() && direct_ != nullptr) direct_->HangUpOnStrangers();
  if (access.ok() && local_ != nullptr) local_->HangUpOnStrangers();
  const absl::Status keys = ReloadKeys();
  for (const absl::Status& status : {access, keys}) {
    if (status.ok()) continue;
    Log().error("{}; what was read before stays in force", std::string(status.message()));
  }
  if (access.ok() && keys.ok()) Log().info("read again: access, keys");
  return access.ok() ? keys : access;
}

absl::Status Server::Impl::ReloadKeys() {
  if (masters_ == nullptr) return absl::OkStatus();
  const absl::Status read = keys_ != nullptr ? keys_->Reload() : masters_->Reload();
  WatchRemoteKeys();
  return read;
}

void Server::Impl::WatchRemoteKeys() {
  std::set<std::string> tenants;
  for (const auto& space : spaces_.All()) tenants.insert(space->tenant);
  for (std::string& tenant : access_->Tenants()) tenants.insert(std::move(tenant));
  remote_.WatchTenants(std::vector<std::string>(tenants.begin(), tenants.end()));
}

void Server::Impl::Reap() {
  metrics_.Sample(started_);
  for (;;) {
    {
      MutexLock lock(mu_);
      if (!reaping_) return;
      stop_.WaitFor(mu_, options_.reap_every);
    }
    metrics_.Sample(Clock::Real().Now());
    const size_t reaped = staging_.Reap();
    if (reaped > 0) metrics_.CountReaped(reaped);
    admission_.Reap();
    if (direct_ != nullptr && admission_.waiting_gets() > 0) direct_->HangUpOnStuck();
    op_.DropIdleSpaces(config_.private_space_idle);
  }
}

StatusFacts Server::Impl::Facts() {
  StatusFacts facts;
  (void)admin_op_.Status({}, facts.status);
  (void)admin_op_.Ages({}, facts.ages);
  (void)admin_op_.Activity({}, facts.activity);
  (void)op_.Usage(Caller{}, {}, facts.usage);
  (void)quotas_.Tenants({}, facts.tenants);
  return facts;
}

MetricsSnapshot Server::Impl::Snapshot() {
  const auto events = publisher_ == nullptr ? EventPublisher::Counters{} : publisher_->counters();
  const auto keys = keys_ == nullptr ? KeyRing::Counts{} : keys_->counts();
  return {.usage = store_->residency().Usage(),
          .counters = store_->residency().Counters(),
          .index_budget = config_.index_bytes,
          .spaces = spaces_.All().size(),
          .space_mismatches = spaces_.mismatches(),
          .staged_bytes = staging_.staged_bytes(),
          .get_bytes = admission_.get_bytes(),
          .put_bytes = admission_.put_bytes(),
          .waiting_gets = admission_.waiting_gets(),
          .local_sessions = local_ == nullptr ? 0 : local_->sessions(),
          .local_bytes = local_ == nullptr ? 0 : local_->bytes(),
          .local_gpu_bytes = local_gpu_.has_value() ? local_gpu_->bytes() : 0,
          .device_codec_bytes = coder_.codec_bytes(),
          .direct_connections = direct_ == nullptr ? 0 : direct_->connections(),
          .direct_refused = direct_ == nullptr ? 0 : direct_->refused(),
          .local_refused = local_ == nullptr ? 0 : local_->refused(),
          .tls_broken_reloads = tls_ == nullptr ? 0 : tls_->broken_reloads(),
          .attention_bytes = attention_.bytes(),
          .attention_pages = attention_.pages(),
          .put_queue = put_workers_.queued(),
          .get_queue = get_workers_.queued(),
          .events_stored = events.log.stored,
          .events_removed = events.log.removed,
          .events_cleared = events.log.cleared,
          .event_batches = events.log.batches,
          .events_lost = events_ == nullptr ? 0 : events_->lost(),
          .event_queue = events_ == nullptr ? 0 : events_->size(),
          .event_replays = events.replays,
          .access = access_->counters(),
          .data_keys = keys.keys,
          .locked_data_keys = keys.locked + remote_.locked_keys(),
          .fits = fitter_.has_value() ? fitter_->Rows() : std::vector<MetricRow>(),
          .remote = remote_.Rows(),
          .ready = admin_op_.ready(),
          .tenants = Tenants()};
}

std::vector<MetricsSnapshot::Tenant> Server::Impl::Tenants() {
  const std::vector<TenantTable::Row> rows = tenants_->All();
  std::vector<MetricsSnapshot::Tenant> out;
  const std::vector<StoreUsage> usage = store_->residency().UsageByTenant();
  for (const TenantTable::Row& row : rows) {
    const StoreUsage held = row.id < usage.size() ? usage[row.id] : StoreUsage{};
    // The one tenant of a server without identities has no name.
    if (row.tenant.empty() && held.pages == 0 && rows.size() > 1) continue;
    out.push_back({.name = row.tenant,
                   .usage = held,
                   .guarantee = row.limits.guarantee,
                   .streams = row.streams,
                   .put_bytes = row.put_bytes,
                   .get_bytes = row.get_bytes,
                   .refused = row.refused});
  }
  return out;
}

absl::Status Server::Impl::Stop() {
  if (std::exchange(stopped_, true)) return absl::OkStatus();
  admin_op_.SetReady(false, {});
  scrubber_.reset();
  unix_.reset();
  admin_unix_.reset();
  SetServing(false);
  if (admin_grpc_ != nullptr) admin_grpc_->Shutdown(std::chrono::system_clock::now());
  if (grpc_ != nullptr) {
    Log().info("draining: streams have {} to finish",
               absl::FormatDuration(absl::FromChrono(options_.drain_grace)));
    grpc_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::duration_cast<std::chrono::microseconds>(options_.drain_grace));
    grpc_->Wait();
  }
  if (admin_grpc_ != nullptr) admin_grpc_->Wait();
  if (reaper_.joinable()) {
    {
      MutexLock lock(mu_);
      reaping_ = false;
    }
    stop_.NotifyAll();
    reaper_.join();
  }
  http_.reset();
  streams_.local = nullptr;
  streams_.direct = nullptr;
  local_.reset();
  direct_.reset();
  local_gpu_.reset();
  publisher_.reset();
  const absl::Status flushed = store_->Flush();
  if (!flushed.ok()) {
    Log().error("what was only in memory is lost: {}", std::string(flushed.message()));
  }
  return flushed;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { (void)impl_->Stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config,
                                                      const ServerOptions& options) {
  const Time started = Clock::Real().Now();
  KVSTOW_RETURN_IF_ERROR(CheckRecipe(config.recipe));
  KVSTOW_RETURN_IF_ERROR(CheckListeners(config));
  std::shared_ptr<TlsContext> tls;
  if (config.tls()) {
    AllowOnlyTls13();
    KVSTOW_ASSIGN_OR_RETURN(tls, TlsContext::ForServer({.certificate = config.tls_cert,
                                                        .key = config.tls_key,
                                                        .ca = config.tls_client_ca}));
  }
  KVSTOW_ASSIGN_OR_RETURN(std::unique_ptr<Access> access, Access::Open(config.access));
  auto events = config.publishes_kv_events() ? std::make_unique<EventQueue>() : nullptr;
  StoreObserver& observer = events != nullptr ? *events : NoStoreObserver();
  auto tenants = std::make_unique<TenantTable>(*options.clock);
  tenants->SetLimits(LimitsOf(*access));
  KVSTOW_ASSIGN_OR_RETURN(OpenedStore opened, OpenStore(config, observer, tenants.get()));
  KVSTOW_ASSIGN_OR_RETURN(opened.remote, OpenRemote(config));
  if (options.open_remote != nullptr) opened.remote = options.open_remote();
  std::unique_ptr<Server> server(new Server(
      std::make_unique<Impl>(config, options, std::move(access), std::move(events),
                             std::move(tenants), std::move(opened), std::move(tls), started)));
  KVSTOW_RETURN_IF_ERROR(server->impl_->Start());
  return server;
}

const std::string& Server::address() const { return impl_->address(); }
const std::string& Server::http_address() const { return impl_->http_address(); }
const std::string& Server::admin_address() const { return impl_->admin_address(); }
absl::Status Server::Reload() { return impl_->Reload(); }
absl::Status Server::Stop() { return impl_->Stop(); }
TieredStore& Server::store() { return impl_->store(); }
RemoteTier& Server::remote() { return impl_->remote(); }
const Staging& Server::staging() const { return impl_->staging(); }

std::string Version() { return KVSTOW_VERSION; }

std::vector<std::pair<std::string, std::string>> LibraryVersions() {
  std::vector<std::pair<std::string, std::string>> out;
  for (absl::string_view pair : absl::StrSplit(KVSTOW_LIBRARIES, ',', absl::SkipEmpty())) {
    out.push_back(absl::StrSplit(pair, absl::MaxSplits('=', 1)));
  }
  return out;
}

}  // namespace kvstow
