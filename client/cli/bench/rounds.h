// Rounds of a comparison: every store in turns has values put, got and deleted.
//
// Values and free functions. Only one round may run at a time in a process.
#ifndef KVSTOW_CLIENT_CLI_BENCH_ROUNDS_H_
#define KVSTOW_CLIENT_CLI_BENCH_ROUNDS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench/peer.h"

namespace kvstow::cli {

// A store to compare, which `start` starts.
struct Contender {
  std::string recipe = "raw";  // of the values on their way
  std::function<absl::StatusOr<std::unique_ptr<Peer>>()> start;
};

// The figures of one store in one round, or in all rounds together.
struct Sample {
  double gbps = 0;          // of raw values
  double cpu_s_per_gb = 0;  // of both ends
  double busy = 0;          // the share of this machine's cores that worked, for whomever
  std::vector<double> us;   // of each call
};

// Rows in the order of the table: operation, clients, store.
struct RowKey {
  std::string operation;
  uint32_t clients;
  size_t peer;
  auto operator<=>(const RowKey&) const = default;
};
using Rows = std::map<RowKey, std::vector<Sample>>;

struct RoundsPlan {
  std::vector<uint32_t> clients;  // at once; a round with each of these numbers
  uint32_t values = 1;            // of a client
  uint32_t batch = 1;             // values in a call
  uint32_t rounds = 1;            // beside one that warms up
  KvSpec spec;                    // of the pages that are values
};

// Runs all rounds. Fails as the first call that does.
absl::StatusOr<Rows> RunRounds(const RoundsPlan& plan,
                               const std::vector<std::unique_ptr<Peer>>& peers);

// Does `calls.each` with the items of every session, `batch` items a call, on a thread for each
// session. `calls.first`, if not null, has all items of a session at once before that.
using Call = absl::Status (Session::*)(std::span<const Item>);
struct Calls {
  Call each;
  Call first = nullptr;
};
absl::StatusOr<Sample> Measure(const Peer& peer,
                               const std::vector<std::unique_ptr<Session>>& sessions,
                               const std::vector<std::vector<Item>>& items, size_t batch,
                               const Calls& calls);

// Returns medians over the samples, and the latencies of all of them in ascending order.
Sample Summary(const std::vector<Sample>& samples);

// Returns whether a store of this name is one that kvstow is compared with.
bool IsRival(const std::string& name);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_BENCH_ROUNDS_H_
