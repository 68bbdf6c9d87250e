#include "service/api/kv_cache_service.h"

#include "base/status_macros.h"
#include "kvstow/v1/kv_cache.grpc.pb.h"
#include "service/api/calibration_stream.h"
#include "service/api/call_notes.h"
#include "service/api/unary.h"
#include "service/operators/lookup_wire.h"
#include "service/transports/direct_server.h"
#include "service/transports/local_sessions.h"

namespace kvstow {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using K = v1::KvCache;

template <typename Base>
using UnaryMethods = K::WithCallbackMethod_OpenSpace<K::WithCallbackMethod_ReportAttention<
    K::WithCallbackMethod_Release<K::WithCallbackMethod_Pin<K::WithCallbackMethod_Delete<
        K::WithCallbackMethod_DropSpace<K::WithCallbackMethod_Usage<K::WithCallbackMethod_OpenLocal<
            K::WithCallbackMethod_OpenDirect<K::WithCallbackMethod_SendCalibration<
                K::WithCallbackMethod_SendStatistics<Base>>>>>>>>>>>;
using RawMethods = K::WithRawCallbackMethod_Put<
    K::WithRawCallbackMethod_Get<K::WithRawCallbackMethod_Lookup<K::Service>>>;

// A call of Lookup. Statistics wait until the answer is on its way.
class LookupCall final : public ServerUnaryReactor {
 public:
  explicit LookupCall(KvOperator& op) : op_(op) {}
  void Answer(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override {
    op_.CatchUp();
    delete this;
  }

 private:
  KvOperator& op_;
};

class KvCacheService final : public UnaryMethods<RawMethods> {
 public:
  KvCacheService(Gate& gate, KvOperator& op, SendingPlaces& sending, StreamParts& streams,
                 WorkerPool& workers)
      : gate_(gate), op_(op), sending_(sending), streams_(streams), workers_(workers) {}

  RawReactor* Put(CallbackServerContext* c) override {
    return NewPutStream(streams_, c, gate_.Enter(*c, RightOf("/kvstow.v1.KvCache/Put")));
  }
  RawReactor* Get(CallbackServerContext* c) override {
    return NewGetStream(streams_, c, gate_.Enter(*c, RightOf("/kvstow.v1.KvCache/Get")));
  }

  ServerUnaryReactor* OpenSpace(CallbackServerContext* c, const v1::OpenSpaceRequest* in,
                                v1::OpenSpaceResponse* out) override {
    return ReplyFrom(
        workers_, gate_, RightOf("/kvstow.v1.KvCache/OpenSpace"), c, *in,
        [=, this](const CallerPtr& caller) { return op_.OpenSpace(*caller, *in, *out); });
  }
  grpc::ServerReadReactor<v1::SendCalibrationRequest>* SendCalibration(
      CallbackServerContext* c, v1::SendCalibrationResponse* out) override {
    return NewCalibrationStream({sending_, gate_, workers_}, c, out);
  }
  grpc::ServerReadReactor<v1::SendStatisticsRequest>* SendStatistics(
      CallbackServerContext* c, v1::SendStatisticsResponse* out) override {
    return NewStatisticsStream({sending_, gate_, workers_}, op_, c, out);
  }
  ServerUnaryReactor* Lookup(CallbackServerContext* c, const grpc::ByteBuffer* in,
                             grpc::ByteBuffer* out) override {
    const absl::StatusOr<CallerPtr> caller = gate_.Enter(*c, RightOf("/kvstow.v1.KvCache/Lookup"));
    auto* const call = new LookupCall(op_);
    const absl::Status status =
        caller.ok() ? StartLookup(*c, **caller, *in, *out, *call) : caller.status();
    if (!status.ok()) call->Answer(status);
    return call;
  }
  ServerUnaryReactor* ReportAttention(CallbackServerContext* c,
                                      const v1::ReportAttentionRequest* in,
                                      v1::ReportAttentionResponse* out) override {
    return ReplyFrom(
        workers_, gate_, RightOf("/kvstow.v1.KvCache/ReportAttention"), c, *in,
        [=, this](const CallerPtr& caller) { return op_.ReportAttention(*caller, *in, *out); });
  }
  ServerUnaryReactor* OpenLocal(CallbackServerContext* c, const v1::OpenLocalRequest* in,
                                v1::OpenLocalResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.KvCache/OpenLocal"), c, *in,
                 [=, this](const CallerPtr& caller) { return TellLocal(caller, *out); });
  }
  ServerUnaryReactor* OpenDirect(CallbackServerContext* c, const v1::OpenDirectRequest* in,
                                 v1::OpenDirectResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.KvCache/OpenDirect"), c, *in,
                 [=, this](const CallerPtr& caller) { return TellDirect(caller, *out); });
  }
  ServerUnaryReactor* Release(CallbackServerContext* c, const v1::ReleaseRequest* in,
                              v1::ReleaseResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.KvCache/Release"), c, *in,
                 [=, this](const CallerPtr& caller) { return op_.Release(*caller, *in, *out); });
  }
  ServerUnaryReactor* Pin(CallbackServerContext* c, const v1::PinRequest* in,
                          v1::PinResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.KvCache/Pin"), c, *in,
                 [=, this](const CallerPtr& caller) { return op_.Pin(*caller, *in, *out); });
  }
  ServerUnaryReactor* Delete(CallbackServerContext* c, const v1::DeleteRequest* in,
                             v1::DeleteResponse* out) override {
    return ReplyFrom(workers_, gate_, RightOf("/kvstow.v1.KvCache/Delete"), c, *in,
                     [=, this](const CallerPtr& caller) { return op_.Delete(*caller, *in, *out); });
  }
  ServerUnaryReactor* DropSpace(CallbackServerContext* c, const v1::DropSpaceRequest* in,
                                v1::DropSpaceResponse* out) override {
    return ReplyFrom(
        workers_, gate_, RightOf("/kvstow.v1.KvCache/DropSpace"), c, *in,
        [=, this](const CallerPtr& caller) { return op_.DropSpace(*caller, *in, *out); });
  }
  ServerUnaryReactor* Usage(CallbackServerContext* c, const v1::UsageRequest* in,
                            v1::UsageResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.KvCache/Usage"), c, *in,
                 [=, this](const CallerPtr& caller) { return op_.Usage(*caller, *in, *out); });
  }

 private:
  // Answers the call at once or later, unless it returns an error.
  absl::Status StartLookup(const CallbackServerContext& context, const Caller& caller,
                           const grpc::ByteBuffer& in, grpc::ByteBuffer& out, LookupCall& call) {
    grpc::Slice message;
    if (!in.DumpToSingleSlice(&message).ok()) {
      return absl::InvalidArgumentError("the message cannot be read");
    }
    KVSTOW_ASSIGN_OR_RETURN(const LookupQuery query, ReadLookupRequest(message));
    const auto ids = [&] { return IdsIn(context.client_metadata()); };
    KVSTOW_ASSIGN_OR_RETURN(PrefixMatch match, op_.Lookup(caller, query, ids));
    op_.Extend(caller, query, std::move(match), [&out, &call](const PrefixMatch& whole) {
      const grpc::Slice answer = WriteLookupResponse(whole);
      out = grpc::ByteBuffer(&answer, 1);
      call.Answer(absl::OkStatus());
    });
    return absl::OkStatus();
  }

  absl::Status TellDirect(const CallerPtr& caller, v1::OpenDirectResponse& out) {
    if (streams_.direct == nullptr) {
      return absl::UnimplementedError(
          "this server takes no direct connections: start it with --direct-listen");
    }
    out.set_port(streams_.direct->port());
    if (gate_.access().has_identities()) out.set_ticket(streams_.direct->NewTicket(caller));
    return absl::OkStatus();
  }

  absl::Status TellLocal(const CallerPtr& caller, v1::OpenLocalResponse& out) {
    if (streams_.local == nullptr) {
      return absl::UnimplementedError(
          "this server shares no memory with workers: start it with --local-socket");
    }
    out.set_socket(streams_.local->socket());
    out.set_token(streams_.local->NewToken(caller));
    return absl::OkStatus();
  }

  Gate& gate_;
  KvOperator& op_;
  SendingPlaces& sending_;
  StreamParts& streams_;
  WorkerPool& workers_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKvCacheService(Gate& gate, KvOperator& op,
                                                  SendingPlaces& sending, StreamParts& streams,
                                                  WorkerPool& workers) {
  return std::make_unique<KvCacheService>(gate, op, sending, streams, workers);
}

}  // namespace kvstow
