#include "tests/client/fake_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstow/v1/admin.grpc.pb.h"
#include "kvstow/v1/kv_cache.grpc.pb.h"
#include "proto/wire/chunk.h"
#include "proto/wire/spec.h"
#include "tests/client/fake_streams.h"
#include "tests/restartable_address.h"

namespace kvstow {
namespace {

using fake::NoSpace;
using fake::Space;
using fake::State;

// The time that is left to a call.
int LeftMs(const grpc::CallbackServerContext& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
}

class FakeCache final : public v1::KvCache::CallbackService {
 public:
  explicit FakeCache(State& state) : state_(state) {}

  grpc::ServerUnaryReactor* OpenSpace(grpc::CallbackServerContext* context,
                                      const v1::OpenSpaceRequest* request,
                                      v1::OpenSpaceResponse* response) override {
    auto* const reactor = context->DefaultReactor();
    state_.faults.open_had_ms = LeftMs(*context);
    std::lock_guard lock(state_.mu);
    const auto it = state_.spaces.find(request->space());
    const bool there = it != state_.spaces.end();
    if (!there && !request->has_spec()) {
      reactor->Finish(NoSpace(request->space()));
      return reactor;
    }
    const KvSpec spec = request->has_spec() ? *FromProto(request->spec()) : it->second.spec;
    if (there && spec != it->second.spec) {
      reactor->Finish(
          {grpc::StatusCode::FAILED_PRECONDITION, FirstDifference(it->second.spec, spec)});
      return reactor;
    }
    if (!there) state_.spaces[request->space()].spec = spec;
    response->set_created(!there);
    response->set_fingerprint(std::string(16, 'f'));
    response->set_recipe("raw");
    response->set_levels(1);
    ToProto(spec, *response->mutable_spec());
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* OpenDirect(grpc::CallbackServerContext* context,
                                       const v1::OpenDirectRequest*,
                                       v1::OpenDirectResponse* response) override {
    auto* const reactor = context->DefaultReactor();
    response->set_port(state_.faults.direct_port);
    reactor->Finish(state_.faults.direct_port > 0
                        ? grpc::Status::OK
                        : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no"));
    return reactor;
  }

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const v1::LookupRequest* request,
                                   v1::LookupResponse* response) override {
    if (state_.faults.other_space_at_ms >= 0) {
      while (LeftMs(*context) > state_.faults.other_space_at_ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      auto* const reactor = context->DefaultReactor();
      reactor->Finish(NoSpace(request->space()));
      return reactor;
    }
    return InSpace(context, request->space(), [&](Space& space) {
      for (const std::string& key : request->keys()) {
        const auto it = space.pages.find(key);
        if (it == space.pages.end()) break;
        response->set_pages(response->pages() + 1);
        response->set_tokens(response->tokens() + it->second.tokens);
        response->add_info()->set_tier("host");
      }
      response->set_lease(1);
    });
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const v1::ReleaseRequest*,
                                    v1::ReleaseResponse*) override {
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context, const v1::PinRequest* request,
                                v1::PinResponse* response) override {
    return InSpace(context, request->space(), [&](Space& space) {
      for (const std::string& key : request->keys()) {
        response->add_status(space.pages.contains(key) ? v1::HIT : v1::MISS);
      }
    });
  }
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteResponse* response) override {
    return InSpace(context, request->space(), [&](Space& space) {
      for (const std::string& key : request->keys()) {
        response->add_status(space.pages.erase(key) > 0 ? v1::HIT : v1::MISS);
      }
    });
  }
  grpc::ServerBidiReactor<v1::PutRequest, v1::PutResponse>* Put(
      grpc::CallbackServerContext* context) override {
    if (Refuses(*context)) return new Refusal<v1::PutRequest, v1::PutResponse>();
    return fake::NewPutStream(state_);
  }
  grpc::ServerBidiReactor<v1::GetRequest, v1::GetResponse>* Get(
      grpc::CallbackServerContext* context) override {
    if (Refuses(*context)) return new Refusal<v1::GetRequest, v1::GetResponse>();
    return fake::NewGetStream(state_);
  }

 private:
  template <typename Request, typename Response>
  class Refusal final : public grpc::ServerBidiReactor<Request, Response> {
   public:
    Refusal() { this->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too much at once"}); }
    void OnDone() override { delete this; }
  };
  bool Refuses(grpc::CallbackServerContext& context) {
    FakeFaults& faults = state_.faults;
    if (faults.refusals.fetch_sub(1) <= 0) return false;
    ++faults.streams;
    context.AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(faults.pushback_ms.load()));
    return true;
  }

  template <typename Fn>
  grpc::ServerUnaryReactor* InSpace(grpc::CallbackServerContext* context, const std::string& name,
                                    Fn fn) {
    auto* const reactor = context->DefaultReactor();
    std::lock_guard lock(state_.mu);
    const auto it = state_.spaces.find(name);
    if (it != state_.spaces.end()) fn(it->second);
    reactor->Finish(it != state_.spaces.end() ? grpc::Status::OK : NoSpace(name));
    return reactor;
  }

  State& state_;
};

class FakeAdmin final : public v1::Admin::CallbackService {
  // Three messages.
  class VerifyReactor final : public grpc::ServerWriteReactor<v1::VerifyProgress> {
   public:
    VerifyReactor() { OnWriteDone(true); }
    void OnWriteDone(bool) override {
      if (sent_ == 3) return Finish(grpc::Status::OK);
      progress_.set_pages(++sent_);
      progress_.set_done(sent_ == 3);
      StartWrite(&progress_);
    }
    void OnDone() override { delete this; }

   private:
    uint64_t sent_ = 0;
    v1::VerifyProgress progress_;
  };
  // Only whoever waits for as long as the grace sees it end.
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override {
    const auto left = context->deadline() - std::chrono::system_clock::now();
    response->set_draining(true);
    response->set_flushed(true);
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(left > std::chrono::milliseconds(request->grace_ms())
                        ? grpc::Status::OK
                        : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the grace is longer"));
    return reactor;
  }
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusResponse* response) override {
    response->set_version("fake");
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(grpc::CallbackServerContext*,
                                                       const v1::VerifyRequest*) override {
    return new VerifyReactor();
  }
};

class FakeServerImpl final : public FakeServer {
 public:
  explicit FakeServerImpl(const std::string& address)
      : address_(address == "127.0.0.1:0" ? RestartableAddress() : address) {
    Start();
  }
  ~FakeServerImpl() override { Kill(); }

  std::string address() const override { return address_; }
  FakeFaults& faults() override { return state_.faults; }
  void Kill() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void Start() override {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.RegisterService(&cache_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr) << "cannot listen on " << address_;
  }

 private:
  const std::string address_;
  State state_;
  FakeCache cache_{state_};
  FakeAdmin admin_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<FakeServer> StartFakeServer(const std::string& address) {
  return std::make_unique<FakeServerImpl>(address);
}

}  // namespace kvstow
