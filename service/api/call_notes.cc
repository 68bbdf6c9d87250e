#include "service/api/call_notes.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/spaces/space.h"

namespace kvstow {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

template <typename Request>
absl::string_view SpaceOf(const void* request) {
  return static_cast<const Request*>(request)->space();
}

// Calls that name a space. gRPC tells a request's address, and only its method its type.
struct SpaceRow {
  absl::string_view method;
  absl::string_view (*space)(const void* request);
};
constexpr SpaceRow kSpaces[] = {
    {"/kvstow.v1.KvCache/OpenSpace", SpaceOf<v1::OpenSpaceRequest>},
    {"/kvstow.v1.KvCache/ReportAttention", SpaceOf<v1::ReportAttentionRequest>},
    {"/kvstow.v1.KvCache/Pin", SpaceOf<v1::PinRequest>},
    {"/kvstow.v1.KvCache/Delete", SpaceOf<v1::DeleteRequest>},
    {"/kvstow.v1.KvCache/DropSpace", SpaceOf<v1::DropSpaceRequest>},
    {"/kvstow.v1.KvCache/Usage", SpaceOf<v1::UsageRequest>},
    {"/kvstow.v1.Admin/SamplePages", SpaceOf<v1::SamplePagesRequest>},
    {"/kvstow.v1.Admin/Ages", SpaceOf<v1::AgesRequest>},
};

class CallNote final : public Interceptor {
 public:
  CallNote(CallLog& calls, absl::string_view method)
      : calls_(calls), method_(method), begin_(Clock::Real().Now()) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      ids_ = IdsIn(*methods->GetRecvInitialMetadata());
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      TakeSpace(methods->GetRecvMessage());
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const auto code = static_cast<absl::StatusCode>(methods->GetSendStatus().error_code());
      const absl::string_view name = method_.substr(method_.rfind('/') + 1);
      // Clients ask in this way whether there is a space, or a way of pages beside gRPC.
      const bool not_there =
          absl::StartsWith(name, "Open") &&
          (code == absl::StatusCode::kNotFound || code == absl::StatusCode::kUnimplemented);
      // Whoever has no identity names what they like: no row is theirs alone.
      if (code == absl::StatusCode::kUnauthenticated) space_.clear();
      const Time now = Clock::Real().Now();
      calls_.Note(name, space_, not_there ? "OK" : absl::StatusCodeToString(code), now - begin_,
                  now, [this] { return ids_; });
    }
    methods->Proceed();
  }

 private:
  // Keeps the space that the request names. A longer text is no name, and is not copied.
  void TakeSpace(const void* request) {
    if (request == nullptr) return;
    for (const SpaceRow& row : kSpaces) {
      if (row.method != method_) continue;
      const absl::string_view space = row.space(request);
      if (space.size() <= kMaxSpaceNameBytes) space_ = std::string(space);
    }
  }

  CallLog& calls_;
  const absl::string_view method_;
  const Time begin_;
  std::string space_;
  CallIds ids_;
};

class CallNotes final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallNotes(CallLog& calls) : calls_(calls) {}

  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const absl::string_view method = info->method();
    if (info->type() != ServerRpcInfo::Type::UNARY || !absl::StartsWith(method, "/kvstow.v1.") ||
        absl::EndsWith(method, "/Lookup")) {
      return nullptr;
    }
    return new CallNote(calls_, method);
  }

 private:
  CallLog& calls_;
};

}  // namespace

CallIds IdsIn(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto value = [&](const char* key) {
    const auto it = metadata.find(key);
    return it == metadata.end() ? absl::string_view()
                                : absl::string_view(it->second.data(), it->second.size());
  };
  return ReadCallIds(value(kRequestIdKey), value(kTraceparentKey));
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallNotes(
    CallLog& calls) {
  return std::make_unique<CallNotes>(calls);
}

}  // namespace kvstow
