#include "service/api/kv_cache_service.h"

#include "base/status_macros.h"
#include "kvstow/v1/kv_cache.grpc.pb.h"
#include "service/api/calibration_stream.h"
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
            K::WithCallbackMethod_OpenDirect<K::WithCallbackMethod_SendCalibration<Base>>>>>>>>>>;
using RawMethods = K::WithRawCallbackMethod_Put<
    K::WithRawCallbackMethod_Get<K::WithRawCallbackMethod_Lookup<K::Service>>>;

// A call of Lookup. Statistics wait until the answer is on its way.
class LookupCall final : public ServerUnaryReactor {
 public:
  LookupCall(KvOperator& op, const absl::Status& status) : op_(op) { Finish(ToGrpc(status)); }
  void OnDone() override {
    op_.CatchUp();
    delete this;
  }

 private:
  KvOperator& op_;
};

class KvCacheService final : public UnaryMethods<RawMethods> {
 public:
  KvCacheService(KvOperator& op, Calibrations& calibrations, StreamParts& streams,
                 WorkerPool& workers)
      : op_(op), calibrations_(calibrations), streams_(streams), workers_(workers) {}

  RawReactor* Put(CallbackServerContext* c) override { return NewPutStream(streams_, c); }
  RawReactor* Get(CallbackServerContext* c) override { return NewGetStream(streams_, c); }

  ServerUnaryReactor* OpenSpace(CallbackServerContext* c, const v1::OpenSpaceRequest* in,
                                v1::OpenSpaceResponse* out) override {
    return ReplyFrom(workers_, c, metrics(), [=, this] { return op_.OpenSpace(*in, *out); });
  }
  grpc::ServerReadReactor<v1::SendCalibrationRequest>* SendCalibration(
      CallbackServerContext* c, v1::SendCalibrationResponse* out) override {
    return NewCalibrationStream(calibrations_, metrics(), workers_, c, out);
  }
  ServerUnaryReactor* Lookup(CallbackServerContext* c, const grpc::ByteBuffer* in,
                             grpc::ByteBuffer* out) override {
    absl::Status status = CheckDeadline(*c, metrics());
    if (status.ok()) status = AnswerLookup(*in, *out);
    return new LookupCall(op_, status);
  }
  ServerUnaryReactor* ReportAttention(CallbackServerContext* c,
                                      const v1::ReportAttentionRequest* in,
                                      v1::ReportAttentionResponse* out) override {
    return ReplyFrom(workers_, c, metrics(), [=, this] { return op_.ReportAttention(*in, *out); });
  }
  ServerUnaryReactor* OpenLocal(CallbackServerContext* c, const v1::OpenLocalRequest*,
                                v1::OpenLocalResponse* out) override {
    return Reply(c, metrics(), [=, this] { return TellLocal(*out); });
  }
  ServerUnaryReactor* OpenDirect(CallbackServerContext* c, const v1::OpenDirectRequest*,
                                 v1::OpenDirectResponse* out) override {
    return Reply(c, metrics(), [=, this] { return TellDirect(*out); });
  }
  ServerUnaryReactor* Release(CallbackServerContext* c, const v1::ReleaseRequest* in,
                              v1::ReleaseResponse* out) override {
    return Reply(c, metrics(), [=, this] { return op_.Release(*in, *out); });
  }
  ServerUnaryReactor* Pin(CallbackServerContext* c, const v1::PinRequest* in,
                          v1::PinResponse* out) override {
    return Reply(c, metrics(), [=, this] { return op_.Pin(*in, *out); });
  }
  ServerUnaryReactor* Delete(CallbackServerContext* c, const v1::DeleteRequest* in,
                             v1::DeleteResponse* out) override {
    return ReplyFrom(workers_, c, metrics(), [=, this] { return op_.Delete(*in, *out); });
  }
  ServerUnaryReactor* DropSpace(CallbackServerContext* c, const v1::DropSpaceRequest* in,
                                v1::DropSpaceResponse* out) override {
    return ReplyFrom(workers_, c, metrics(), [=, this] { return op_.DropSpace(*in, *out); });
  }
  ServerUnaryReactor* Usage(CallbackServerContext* c, const v1::UsageRequest* in,
                            v1::UsageResponse* out) override {
    return Reply(c, metrics(), [=, this] { return op_.Usage(*in, *out); });
  }

 private:
  Metrics& metrics() { return streams_.metrics; }

  absl::Status AnswerLookup(const grpc::ByteBuffer& in, grpc::ByteBuffer& out) {
    grpc::Slice message;
    if (!in.DumpToSingleSlice(&message).ok()) {
      return absl::InvalidArgumentError("the message cannot be read");
    }
    KVSTOW_ASSIGN_OR_RETURN(const LookupQuery query, ReadLookupRequest(message));
    KVSTOW_ASSIGN_OR_RETURN(const PrefixMatch match, op_.Lookup(query));
    const grpc::Slice answer = WriteLookupResponse(match);
    out = grpc::ByteBuffer(&answer, 1);
    return absl::OkStatus();
  }

  absl::Status TellDirect(v1::OpenDirectResponse& out) {
    if (streams_.direct == nullptr) {
      return absl::UnimplementedError(
          "this server takes no direct connections: start it with --direct-listen");
    }
    out.set_port(streams_.direct->port());
    return absl::OkStatus();
  }

  absl::Status TellLocal(v1::OpenLocalResponse& out) {
    if (streams_.local == nullptr) {
      return absl::UnimplementedError(
          "this server shares no memory with workers: start it with --local-socket");
    }
    out.set_socket(streams_.local->socket());
    out.set_token(streams_.local->NewToken());
    return absl::OkStatus();
  }

  KvOperator& op_;
  Calibrations& calibrations_;
  StreamParts& streams_;
  WorkerPool& workers_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeKvCacheService(KvOperator& op, Calibrations& calibrations,
                                                  StreamParts& streams, WorkerPool& workers) {
  return std::make_unique<KvCacheService>(op, calibrations, streams, workers);
}

}  // namespace kvstow
