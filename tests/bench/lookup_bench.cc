// The cost of a Lookup, beside a bare gRPC call of as many bytes each way that does nothing.
//
//   BM_Lookup/KEYS   calls of Lookup with a lease over loopback, all keys stored, and calls of the
//                    echo, in turns. `of_echo` is the ratio of their medians; keys_per_second is of
//                    Lookup alone. `client_of_echo` is the same for Client::Lookup, which goes over
//                    a direct connection.
//   BM_LookupBesideARemoteTier/KEYS
//                    `local_of_plain`: Client::Lookup of pages that are all on a server with a
//                    remote tier, over the same on a server without one, in turns; the bar is
//                    1.05. `far_us` is of pages that only the remote tier has, a real cluster on
//                    loopback; `ask_us` is of one command there; `late` counts look-ups that it
//                    did not answer in time.
#include <benchmark/benchmark.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/digest.h"
#include "client/client.h"
#include "kvstow/v1/kv_cache.grpc.pb.h"
#include "proto/wire/spec.h"
#include "service/remote/redis_cluster.h"
#include "service/remote/remote_tier.h"
#include "service/server.h"
#include "tests/service/remote/test_cluster.h"

namespace kvstow {
namespace {

KvSpec TinySpec() {
  KvSpec spec{.model = "bench/lookup",
              .revision = kUnversioned,
              .layers = 1,
              .kv_heads = 1,
              .page_tokens = 16};
  spec.head_dim_k = spec.head_dim_v = 8;
  return spec;
}

std::string KeyOf(int64_t i) {  // of 32 bytes, as clients make them
  const Digest128 half = Xxh3_128(AsBytes(absl::StrCat("key", i)));
  return absl::StrCat(AsString(half.bytes), AsString(half.bytes));
}

std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  return context;
}

// Answers every call with the same bytes.
class Echo final : public grpc::CallbackGenericService {
 public:
  explicit Echo(const std::string& answer) : slice_(answer), answer_(&slice_, 1) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
  }
  ~Echo() override { server_->Shutdown(); }
  int port() const { return port_; }

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(grpc::ByteBuffer& answer) : answer_(answer) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::CANCELLED);
      StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer request_, answer_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Call(answer_);
  }
  const grpc::Slice slice_;
  grpc::ByteBuffer answer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A server that has `keys` pages in space "s", and shares them with those of the same `remote`.
std::unique_ptr<Server> ServerWith(int64_t keys, const std::string& remote = "") {
  Config config;
  config.remote = remote;
  config.remote_wait = std::chrono::seconds(1);
  config.listen = "127.0.0.1:0";
  config.http_listen = "off";
  config.device = "cpu";
  config.host_bytes = uint64_t{1} << 30;
  config.log_level = "off";
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as kvstowd does
  auto server = std::move(Server::Start(config, ServerOptions()).value());
  const auto stub = v1::KvCache::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  v1::OpenSpaceRequest open;
  open.set_space("s");
  open.set_recipe("raw");
  ToProto(TinySpec(), *open.mutable_spec());
  v1::OpenSpaceResponse opened;
  if (!stub->OpenSpace(Context().get(), open, &opened).ok()) return nullptr;
  const auto context = Context();
  const auto put = stub->Put(context.get());
  v1::PutRequest request;
  request.mutable_open()->set_space("s");
  request.mutable_open()->set_fingerprint(opened.fingerprint());
  put->Write(request);
  for (int64_t i = 0; i < keys; ++i) {
    request.Clear();
    request.set_page(static_cast<uint64_t>(i) + 1);
    request.mutable_begin()->set_key(KeyOf(i));
    request.mutable_begin()->set_tokens(16);
    request.mutable_begin()->set_payload_bytes(PageBytes(TinySpec(), 16));
    request.set_data(std::string(PageBytes(TinySpec(), 16), static_cast<char>(i)));
    put->Write(request);
  }
  put->WritesDone();
  v1::PutResponse results;
  while (put->Read(&results)) {
  }
  return put->Finish().ok() ? std::move(server) : nullptr;
}

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Seconds that `call` takes.
template <typename Call>
double Time(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void BM_Lookup(benchmark::State& state) {
  const int64_t keys = state.range(0);
  const auto server = ServerWith(keys);
  if (server == nullptr) return state.SkipWithError("the pages could not be put");
  const auto channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::KvCache::NewStub(channel);
  v1::LookupRequest request;
  v1::OpenSpaceRequest find;
  find.set_space("s");
  v1::OpenSpaceResponse found;
  if (!stub->OpenSpace(Context().get(), find, &found).ok()) return state.SkipWithError("no space");
  request.set_space("s");
  request.set_fingerprint(found.fingerprint());
  request.set_lease(true);
  for (int64_t i = 0; i < keys; ++i) request.add_keys(KeyOf(i));
  v1::LookupResponse response;
  const auto lookup = [&] {
    const grpc::Status status = stub->Lookup(Context().get(), request, &response);
    if (!status.ok() || response.pages() != keys) state.SkipWithError("a page was not found");
    v1::ReleaseRequest release;
    release.set_lease(response.lease());
    return release;
  };
  v1::ReleaseResponse released;
  stub->Release(Context().get(), lookup(), &released);

  Echo echo(response.SerializeAsString());
  const auto bare = v1::KvCache::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", echo.port()), grpc::InsecureChannelCredentials()));
  // The echo's client is the generated one too: it makes and reads the same messages.
  const auto client = Client::Connect({.address = server->address()});
  if (!client->FindSpace("s").ok()) return state.SkipWithError("no space");
  std::vector<std::string> all(request.keys().begin(), request.keys().end());
  std::vector<double> lookups, echoes, client_lookups;
  for (auto _ : state) {
    v1::ReleaseRequest release;
    lookups.push_back(Time([&] { release = lookup(); }));
    stub->Release(Context().get(), release, &released);
    echoes.push_back(Time([&] { bare->Lookup(Context().get(), request, &response); }));
    PrefixHit hit;
    client_lookups.push_back(Time([&] { hit = client->Lookup("s", all); }));
    if (hit.pages != keys) state.SkipWithError("the client did not find a page");
    (void)client->Release(hit.lease);
    state.SetIterationTime(lookups.back());
  }
  const double p50 = Median(lookups), bare_p50 = Median(echoes);
  state.counters["p50_us"] = p50 * 1e6;
  state.counters["echo_p50_us"] = bare_p50 * 1e6;
  state.counters["of_echo"] = p50 / bare_p50;
  const double client_p50 = Median(client_lookups);
  state.counters["client_p50_us"] = client_p50 * 1e6;
  state.counters["client_of_echo"] = client_p50 / bare_p50;
  state.counters["keys_per_second"] = static_cast<double>(keys) / p50;
}
void BM_LookupBesideARemoteTier(benchmark::State& state) {
  if (TestRedis::Program().empty()) return state.SkipWithError("no redis-server here");
  const int64_t keys = state.range(0), rounds = 20;
  TestCluster cluster({}, 3, 0);
  const std::string remote = absl::StrJoin(cluster.seeds(), ",");
  const auto plain = ServerWith(keys), sender = ServerWith(keys * (rounds + 1), remote);
  const auto far = ServerWith(0, remote);
  if (plain == nullptr || sender == nullptr || far == nullptr) {
    return state.SkipWithError("the pages could not be put");
  }
  sender->remote().Flush();
  const auto to_plain = Client::Connect({.address = plain->address()});
  const auto to_sender = Client::Connect({.address = sender->address()});
  const auto to_far = Client::Connect({.address = far->address()});
  for (const auto* client : {&to_plain, &to_sender, &to_far}) {
    if (!(*client)->FindSpace("s").ok()) return state.SkipWithError("no space");
  }
  const auto redis = OpenRedis({.seeds = cluster.seeds()});
  if (!redis.ok()) return state.SkipWithError("no cluster");
  const auto ask_for_one = [&] {
    std::promise<void> answered;
    (*redis)->Exists({"nothing"}, Clock::Real().Now() + std::chrono::seconds(10),
                     [&](const auto&) { answered.set_value(); });
    answered.get_future().wait();
  };
  std::vector<double> plains, locals, fars, asks;
  const auto look_up = [&](Client& client, int64_t first) {
    std::vector<std::string> names;
    for (int64_t i = 0; i < keys; ++i) names.push_back(KeyOf(first + i));
    return Time([&] {
      const PrefixHit hit = client.Lookup("s", names);
      if (hit.pages != keys) state.SkipWithError("a page was not found");
      (void)client.Release(hit.lease);
    });
  };
  look_up(*to_far, rounds * keys);  // it learns of the space's generation
  for (auto _ : state) {
    const auto round = static_cast<int64_t>(fars.size());
    for (int i = 0; i < 50; ++i) {
      plains.push_back(look_up(*to_plain, 0));
      locals.push_back(look_up(*to_sender, 0));
    }
    fars.push_back(look_up(*to_far, round * keys));
    asks.push_back(Time(ask_for_one));
  }
  state.counters["plain_us"] = Median(plains) * 1e6;
  state.counters["local_of_plain"] = Median(locals) / Median(plains);
  state.counters["far_us"] = Median(fars) * 1e6;
  state.counters["ask_us"] = Median(asks) * 1e6;
  state.counters["late"] = static_cast<double>(far->remote().counters().late_lookups.load());
}
BENCHMARK(BM_LookupBesideARemoteTier)->Arg(512)->Iterations(20)->Unit(benchmark::kMillisecond);

BENCHMARK(BM_Lookup)->Arg(1)->Arg(64)->Arg(512)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvstow
