// Flags of the verbs that plan and measure: sizes, and bandwidths.
#ifndef KVSTOW_CLIENT_CLI_PLAN_FLAGS_H_
#define KVSTOW_CLIENT_CLI_PLAN_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/verb.h"
#include "client/planner/bandwidth.h"

namespace kvstow::cli {

// Returns a size above 0; others are wrong use.
inline uint64_t SizeOf(const std::string& text) {
  const absl::StatusOr<uint64_t> size = ParseSize(text);
  if (!size.ok()) Refuse(std::string(size.status().message()));
  if (*size == 0) Refuse("'" + text + "' is no size to plan with: it is 0");
  return *size;
}

inline Flag AddSize(const Verb& verb, const std::string& name, uint64_t& bytes,
                    const std::string& help) {
  return verb
      .Parse(
          name, [&bytes](const std::string& text) { bytes = SizeOf(text); }, help)
      .TypeName("SIZE");
}

inline Flag AddBandwidth(const Verb& verb, const std::string& name, double& speed,
                         const std::string& help) {
  return verb
      .Parse(
          name,
          [&speed](const std::string& text) {
            const absl::StatusOr<double> parsed = planner::ParseBandwidth(text);
            if (!parsed.ok()) Refuse(std::string(parsed.status().message()));
            speed = *parsed;
          },
          help)
      .TypeName("BANDWIDTH");
}

inline Flag AddNumber(const Verb& verb, const std::string& name, double& value, double low,
                      double high, const std::string& help) {
  return verb.Option(name, value, help).Within(low, high).TypeName("NUMBER");
}

// --remote: a size, or "endless", which is UINT64_MAX; anything else is wrong use.
inline Flag AddRemoteSize(const Verb& verb, uint64_t& bytes, const std::string& help) {
  return verb
      .Parse(
          "--remote",
          [&bytes](const std::string& text) {
            const auto size =
                text == "endless" ? absl::StatusOr<uint64_t>(UINT64_MAX) : ParseSize(text);
            if (!size.ok() || *size == 0) {
              Refuse(absl::StrCat("--remote: '", text,
                                  "' is not a size above 0: write 2TiB, or endless"));
            }
            bytes = *size;
          },
          help)
      .TypeName("SIZE");
}

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PLAN_FLAGS_H_
