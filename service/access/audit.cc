#include "service/access/audit.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/log.h"

namespace kvstow {

void Audit(absl::string_view identity, absl::string_view call, absl::string_view arguments,
           const absl::Status& result, const CallIds& ids) {
  constexpr size_t kMostArguments = 4 << 10;
  nlohmann::ordered_json line;
  line["identity"] = std::string(identity);
  line["call"] = std::string(call);
  line["arguments"] = std::string(arguments.substr(0, kMostArguments));
  line["result"] = absl::StatusCodeToString(result.code());
  if (!result.ok()) line["message"] = std::string(result.message());
  if (!ids.request.empty()) line["request"] = ids.request;
  if (!ids.trace.empty()) line["trace"] = ids.trace;
  AuditLog().info("{}", line.dump(-1, ' ', /*ensure_ascii=*/true,
                                  nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace kvstow
