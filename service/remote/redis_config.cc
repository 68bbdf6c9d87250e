#include "service/remote/redis_config.h"

#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

absl::Status Wrong(absl::string_view option, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("redis ", option, ": ", what));
}

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) {
    return Wrong("password_file", absl::StrCat("'", path, "' cannot be read, or is empty"));
  }
  absl::StripAsciiWhitespace(&line);
  if (line.empty()) return Wrong("password_file", absl::StrCat("'", path, "' has no password"));
  return line;
}

}  // namespace

absl::StatusOr<RedisConfig> ReadRedisOptions(const RedisOptions& options) {
  RedisConfig out{.user = options.user,
                  .password = options.password,
                  .tls = options.tls,
                  .tls_files = options.tls_files,
                  .tls_name = options.tls_name,
                  .replica_reads = options.replica_reads,
                  .limits = {.queue_bytes = options.queue_bytes,
                             .queue_commands = options.queue_commands,
                             .connect_timeout = options.connect_timeout}};
  if (options.seeds.empty()) return Wrong("seeds", "there is none: write HOST:PORT");
  for (const std::string& seed : options.seeds) {
    const auto address = ParseRedisAddress(seed);
    if (!address.has_value()) {
      return Wrong("seeds", absl::StrCat("'", seed, "' is not HOST:PORT, as 10.0.0.1:6379"));
    }
    out.seeds.push_back(*address);
  }
  if (!options.password_file.empty()) {
    if (!options.password.empty()) return Wrong("password_file", "there is a password too");
    KVSTOW_ASSIGN_OR_RETURN(out.password, ReadPassword(options.password_file));
  }
  if (!out.user.empty() && out.password.empty()) return Wrong("user", "it needs a password");
  const bool files = !options.tls_files.ca.empty() || !options.tls_files.certificate.empty() ||
                     !options.tls_files.key.empty() || !options.tls_name.empty();
  if (!options.tls && files) return Wrong("tls", "there are files for it, but it is off");
  if (options.connect_timeout < std::chrono::milliseconds(1)) {
    return Wrong("connect_timeout", "write 1 ms at least");
  }
  if (options.queue_bytes == 0) return Wrong("queue_bytes", "write 1 at least");
  if (options.queue_commands == 0) return Wrong("queue_commands", "write 1 at least");
  for (const RedisAddress& seed : out.seeds) {
    const auto login = RedisLoginOf(out, seed);
    if (!login.ok()) return Wrong("tls_files", login.status().message());
  }
  return out;
}

absl::StatusOr<RedisLogin> RedisLoginOf(const RedisConfig& config, const RedisAddress& address) {
  RedisLogin login{.user = config.user, .password = config.password, .node = address.text()};
  if (config.tls) {
    const std::string& name = config.tls_name.empty() ? address.host : config.tls_name;
    KVSTOW_ASSIGN_OR_RETURN(login.tls, TlsContext::ForClient(config.tls_files, name));
  }
  return login;
}

}  // namespace kvstow
