#include "service/api/peer_names.h"

#include <grpc/grpc_security_constants.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvstow {

std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  std::vector<std::string> out;
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return out;
  const auto add = [&](const char* property, absl::string_view kind) {
    for (const grpc::string_ref& value : peer->FindPropertyValues(property)) {
      const absl::string_view name(value.data(), value.size());
      if (kind == "uri:" && absl::StartsWith(name, "spiffe://")) continue;
      // A name with a NUL in it is one thing to a certificate authority and another to C.
      if (!name.empty() && !absl::StrContains(name, '\0')) out.push_back(absl::StrCat(kind, name));
    }
  };
  add(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME, "");
  add(GRPC_PEER_URI_PROPERTY_NAME, "uri:");
  add(GRPC_PEER_DNS_PROPERTY_NAME, "dns:");
  add(GRPC_X509_CN_PROPERTY_NAME, "cn:");
  return out;
}

}  // namespace kvstow
