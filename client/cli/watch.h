// A look at a server, once or again and again: `stats --watch` and `top`.
#ifndef KVSTOW_CLIENT_CLI_WATCH_H_
#define KVSTOW_CLIENT_CLI_WATCH_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/cli.h"

namespace kvstow::cli {

struct Look {
  Json json;
  std::string text;
};

// Prints looks: one, or one every `interval_s` until interrupted. On a terminal each text takes the
// place of the one before. Returns the exit code; a look that fails is the last.
int Watch(const OutputFlags& flags, bool again, double interval_s,
          const std::function<absl::StatusOr<Look>()>& look);

// --interval
void AddIntervalFlag(const Verb& verb, double& interval_s, const std::string& help);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_WATCH_H_
