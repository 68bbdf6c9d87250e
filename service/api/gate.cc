#include "service/api/gate.h"

#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/match.h"
#include "service/api/call_notes.h"
#include "service/api/peer_names.h"
#include "service/transports/streams.h"

namespace kvstow {
namespace {

constexpr char kScheme[] = "bearer ";

absl::string_view NameOf(const Right& right) {
  return absl::string_view(right.method.data(), right.method.size()).substr(1);
}

}  // namespace

PeerFacts Gate::FactsOf(const grpc::CallbackServerContext& context) const {
  PeerFacts facts{.certificate_names = CertificateNames(context), .bearer_token = {}, .uid = {}};
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  if (first != last) {
    const absl::string_view value(first->second.data(), first->second.size());
    const bool good = absl::StartsWithIgnoreCase(value, kScheme) && std::next(first) == last;
    if (good) facts.bearer_token = std::string(value.substr(sizeof(kScheme) - 1));
    // Another scheme, two tokens or an empty one is an identity that nobody has, and not none.
    if (facts.bearer_token.empty()) facts.bearer_token.push_back(' ');
  }
  if (user_of_) facts.uid = user_of_(context.peer());
  return facts;
}

absl::StatusOr<CallerPtr> Gate::Enter(const grpc::CallbackServerContext& context,
                                      const Right& right) {
  if (absl::Status s = CheckDeadline(context, metrics_); !s.ok()) return s;
  if (!access_.has_identities()) return access_.Identify({});
  absl::StatusOr<CallerPtr> caller = access_.Identify(FactsOf(context));
  absl::Status status = caller.status();
  if (status.ok()) status = access_.MayCall(**caller, right);
  if (status.ok()) return caller;
  if (right.audited == Audited::kNo) return status;
  const CallIds ids = IdsIn(context.client_metadata());
  if (caller.ok()) {
    Audit((*caller)->identity, NameOf(right), "", status, ids);
  } else {
    strangers_.Note(NameOf(right), status, ids, Clock::Real().Now());
  }
  return status;
}

bool Gate::IsKept(const Right& right) const {
  return right.audited == Audited::kChange ||
         (right.audited == Audited::kRead && access_.has_identities());
}

void Gate::Leave(const grpc::CallbackServerContext& context, const Caller& caller,
                 const Right& right, const google::protobuf::Message& request,
                 const absl::Status& result) const {
  if (IsKept(right)) Leave(context, caller, right, request.ShortDebugString(), result);
}

void Gate::Leave(const grpc::CallbackServerContext& context, const Caller& caller,
                 const Right& right, absl::string_view arguments,
                 const absl::Status& result) const {
  if (!IsKept(right)) return;
  Audit(caller.identity, NameOf(right), arguments, result, IdsIn(context.client_metadata()));
}

}  // namespace kvstow
