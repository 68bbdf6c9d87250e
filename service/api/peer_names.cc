#include "service/api/peer_names.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvstow {

std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context) {
  std::vector<std::string> out;
  const auto peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) return out;
  const auto each = [&](const char* property, const auto& take) {
    for (const grpc::string_ref& value : peer->FindPropertyValues(property)) {
      take(absl::string_view(value.data(), value.size()));
    }
  };
  each(GRPC_PEER_URI_PROPERTY_NAME, [&](absl::string_view uri) {
    out.push_back(absl::StartsWith(uri, "spiffe://") ? std::string(uri)
                                                     : absl::StrCat("uri:", uri));
  });
  each(GRPC_PEER_DNS_PROPERTY_NAME,
       [&](absl::string_view name) { out.push_back(absl::StrCat("dns:", name)); });
  each(GRPC_X509_CN_PROPERTY_NAME,
       [&](absl::string_view name) { out.push_back(absl::StrCat("cn:", name)); });
  return out;
}

}  // namespace kvstow
