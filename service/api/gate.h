// Gate: what every gRPC call of kvstow.v1 passes before anything else looks at it. It checks the
// deadline, finds out who calls (service/access/access.h), and whether they may.
//
// A handler calls Enter with the right of its method and goes on as the caller that it returns.
// Calls of operators are kept in the audit log: refused ones by Enter, others by Leave.
// Thread-safe.
#ifndef KVSTOW_SERVICE_API_GATE_H_
#define KVSTOW_SERVICE_API_GATE_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/access/access.h"
#include "service/access/audit.h"
#include "service/ops/metrics.h"

namespace google::protobuf {
class Message;
}

namespace kvstow {

class Gate {
 public:
  // Returns the user behind a peer, as ServerContext::peer() names it.
  using UserOf = std::function<std::optional<uid_t>(absl::string_view peer)>;
  // Both outlive this. `user_of` null = no peer's user is known.
  Gate(Access& access, Metrics& metrics, UserOf user_of = nullptr)
      : access_(access), metrics_(metrics), user_of_(std::move(user_of)) {}

  // Fails with FAILED_PRECONDITION without a deadline, UNAUTHENTICATED or PERMISSION_DENIED.
  absl::StatusOr<CallerPtr> Enter(const grpc::CallbackServerContext& context, const Right& right);
  // Ends a call that Enter let in.
  void Leave(const grpc::CallbackServerContext& context, const Caller& caller, const Right& right,
             const google::protobuf::Message& request, const absl::Status& result) const;
  // The same for a call whose request is not one message.
  void Leave(const grpc::CallbackServerContext& context, const Caller& caller, const Right& right,
             absl::string_view arguments, const absl::Status& result) const;

  Access& access() { return access_; }
  Metrics& metrics() { return metrics_; }

 private:
  bool IsKept(const Right& right) const;
  PeerFacts FactsOf(const grpc::CallbackServerContext& context) const;

  Access& access_;
  Metrics& metrics_;
  const UserOf user_of_;
  StrangersAudit strangers_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_GATE_H_
