#include "service/access/audit.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/log.h"

namespace kvstow {
namespace {

void Write(absl::string_view identity, absl::string_view call, absl::string_view arguments,
           const absl::Status& result, const CallIds& ids, uint64_t left_out) {
  constexpr size_t kMostArguments = 4 << 10;
  nlohmann::ordered_json line;
  line["identity"] = std::string(identity);
  line["call"] = std::string(call);
  line["arguments"] = std::string(arguments.substr(0, kMostArguments));
  line["result"] = absl::StatusCodeToString(result.code());
  if (!result.ok()) line["message"] = std::string(result.message());
  if (!ids.request.empty()) line["request"] = ids.request;
  if (!ids.trace.empty()) line["trace"] = ids.trace;
  if (left_out > 0) line["left_out"] = left_out;
  AuditLog().info("{}", line.dump(-1, ' ', /*ensure_ascii=*/true,
                                  nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void Audit(absl::string_view identity, absl::string_view call, absl::string_view arguments,
           const absl::Status& result, const CallIds& ids) {
  Write(identity, call, arguments, result, ids, 0);
}

void StrangersAudit::Note(absl::string_view call, const absl::Status& refusal, const CallIds& ids,
                          Time now) {
  uint64_t left_out = 0;
  {
    MutexLock lock(mu_);
    if (now - second_ >= std::chrono::seconds(1)) {
      second_ = now;
      lines_ = 0;
    }
    if (lines_ == kLines) {
      ++left_out_;
      return;
    }
    ++lines_;
    left_out = std::exchange(left_out_, 0);
  }
  Write("", call, "", refusal, ids, left_out);
}

}  // namespace kvstow
