// CheckRedis: one connection to a seed after the other, without the router.
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "service/remote/redis_cluster.h"
#include "service/remote/redis_config.h"
#include "service/remote/redis_resolver.h"

namespace kvstow {
namespace {

constexpr int kOldestMajor = 6;

// Returns what INFO, or CLUSTER INFO, says of `field`. "" = nothing.
std::string FieldOf(absl::string_view info, absl::string_view field) {
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    if (absl::ConsumePrefix(&line, absl::StrCat(field, ":"))) {
      return std::string(absl::StripSuffix(line, "\r"));
    }
  }
  return "";
}

// Sends `command` once logged in, and waits for the reply.
absl::StatusOr<RedisReply> Ask(RedisConnection& connection, const std::string& node,
                               std::initializer_list<absl::string_view> command, Time deadline) {
  std::vector<RedisReply> replies;
  bool sent = false;
  int16_t events = 0;
  for (;;) {
    if (!sent && connection.ready()) {
      connection.Send(RedisCommandOf({command.begin(), command.size()}));
      sent = true;
    }
    KVSTOW_ASSIGN_OR_RETURN(const bool more, connection.Advance(events, replies));
    if (sent && !replies.empty()) return std::move(replies[0]);
    if (more || (!sent && connection.ready())) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now());
    if (left.count() <= 0) {
      return absl::UnavailableError(
          absl::StrCat("redis ", node, ": somebody listens, but does not answer in time"));
    }
    pollfd waits{.fd = connection.descriptor(), .events = connection.waits_for(), .revents = 0};
    poll(&waits, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    events = waits.revents;
  }
}

absl::Status CheckVersion(const std::string& node, const RedisReply& info) {
  const std::string version = FieldOf(info.view(), "redis_version");
  int major = 0;
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  if (!absl::SimpleAtoi(parts[0], &major)) {
    return absl::InvalidArgumentError(
        absl::StrCat("redis ", node, ": what listens there is no Redis"));
  }
  if (major < kOldestMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("redis ", node, ": its version ", version, " is older than 6.0: update it"));
  }
  return absl::OkStatus();
}

absl::Status CheckState(RedisConnection& connection, const std::string& node,
                        const RedisReply& info, Time deadline) {
  if (FieldOf(info.view(), "cluster_enabled") == "1") {
    KVSTOW_ASSIGN_OR_RETURN(const RedisReply state,
                            Ask(connection, node, {"CLUSTER", "INFO"}, deadline));
    if (state.is_error()) return StatusOfRedisError(node, state.text);
    const std::string says = FieldOf(state.view(), "cluster_state");
    if (says == "ok") return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("redis ", node, ": its cluster is not ok (", says,
                                               "): look at CLUSTER NODES there"));
  }
  if (FieldOf(info.view(), "role") == "slave") {
    return absl::FailedPreconditionError(
        absl::StrCat("redis ", node, ": it is a replica, which takes no values: name its primary"));
  }
  return absl::OkStatus();
}

absl::Status CheckSeed(const RedisConfig& config, const RedisAddress& seed, Time deadline) {
  const std::string node = seed.text();
  KVSTOW_ASSIGN_OR_RETURN(const SocketAddresses addresses, ResolveRedis(seed));
  absl::Status last;
  for (const SocketAddress& address : addresses) {
    KVSTOW_ASSIGN_OR_RETURN(RedisLogin login, RedisLoginOf(config, seed));
    auto connection = RedisConnection::Begin(address, std::move(login));
    if (!connection.ok()) {
      last = connection.status();
      continue;
    }
    const auto info = Ask(**connection, node, {"INFO"}, deadline);
    if (!info.ok()) {
      last = info.status();
      continue;
    }
    if (info->is_error()) return StatusOfRedisError(node, info->text);
    KVSTOW_RETURN_IF_ERROR(CheckVersion(node, *info));
    return CheckState(**connection, node, *info, deadline);
  }
  return last;
}

}  // namespace

absl::Status CheckRedis(const RedisOptions& options, Time deadline) {
  KVSTOW_ASSIGN_OR_RETURN(const RedisConfig config, ReadRedisOptions(options));
  absl::Status first;
  for (size_t i = 0; i < config.seeds.size(); ++i) {
    // The seeds share the time that is left, so that a seed that hangs leaves some to the others.
    const Time now = Clock::Real().Now();
    const auto left = static_cast<int64_t>(config.seeds.size() - i);
    const absl::Status status = CheckSeed(config, config.seeds[i], now + (deadline - now) / left);
    if (status.ok()) return status;
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace kvstow
