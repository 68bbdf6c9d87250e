#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

constexpr const char* kText = "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v";
constexpr const char* kJson = R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":"%v"})";

}  // namespace

spdlog::logger& Log() {
  static spdlog::logger* const logger = [] {
    auto* l = new spdlog::logger("kvstow", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    l->set_pattern(kText);
    return l;
  }();
  return *logger;
}

absl::Status SetUpLog(absl::string_view level, absl::string_view format) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("log level '", level, "': use trace, debug, info, warn, error or off"));
  }
  if (format != "text" && format != "json") {
    return absl::InvalidArgumentError(absl::StrCat("log format '", format, "': use text or json"));
  }
  Log().set_level(parsed);
  Log().set_pattern(format == "json" ? kJson : kText);
  return absl::OkStatus();
}

}  // namespace kvstow
