#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvstow {
namespace {

constexpr const char* kText = "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v";
constexpr const char* kJson = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%J"})";

// The patterns of loggers whose messages are JSON objects; `%n` is the logger's name.
constexpr const char* kObjectText = "%Y-%m-%dT%H:%M:%S.%e %n %v";
constexpr const char* kObjectJson = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","%n":%v})";

std::string EscapeJson(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppendFormat(&out, "\\u%04x", c);
        } else {
          out += c;
        }
    }
  }
  return out;
}

// %J: the message as the inside of a JSON string. spdlog's %v is verbatim, so a quote or a new line
// in a message would break the line for whoever parses it.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string escaped = EscapeJson({message.payload.data(), message.payload.size()});
    out.append(escaped.data(), escaped.data() + escaped.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

spdlog::logger* NewLogger(const char* name, const char* pattern) {
  auto* l = new spdlog::logger(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  l->set_pattern(pattern);
  return l;
}

}  // namespace

spdlog::logger& Log() {
  static spdlog::logger* const logger = NewLogger("kvstow", kText);
  return *logger;
}

spdlog::logger& AuditLog() {
  static spdlog::logger* const logger = NewLogger("audit", kObjectText);
  return *logger;
}

spdlog::logger& CallsLog() {
  static spdlog::logger* const logger = NewLogger("call", kObjectText);
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
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('J').set_pattern(format == "json" ? kJson : kText);
  Log().set_formatter(std::move(formatter));
  Log().set_level(parsed);
  for (spdlog::logger* const l : {&AuditLog(), &CallsLog()}) {
    l->set_pattern(format == "json" ? kObjectJson : kObjectText);
  }
  AuditLog().set_level(parsed == spdlog::level::off ? parsed : spdlog::level::info);
  CallsLog().set_level(parsed);
  return absl::OkStatus();
}

}  // namespace kvstow
