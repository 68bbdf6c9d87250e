// A comparison over a link (link.h): rates, and the time to first token of a long prefix beside
// what the planner predicts for it.
//
// Free functions.
#ifndef KVSTOW_CLIENT_CLI_BENCH_COMPARE_LINK_H_
#define KVSTOW_CLIENT_CLI_BENCH_COMPARE_LINK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench/link.h"
#include "client/cli/bench/rounds.h"
#include "client/cli/cli.h"
#include "kernels/page/page.h"

namespace kvstow::cli {

// The model whose KV goes over the link, of the planner's table, with values of F16.
inline constexpr char kModelOverLink[] = "llama-3.1-8b";
absl::StatusOr<KvSpec> SpecOverLink(uint32_t page_tokens);

struct LinkComparison {
  RoundsPlan rounds;
  std::vector<Contender> contenders;
  double bytes_per_s = 0;      // of the link
  uint32_t prefix_tokens = 0;  // 0 = no prefix
};

// Runs the rounds with all contenders in turns, then the prefix with one after the other. Servers
// are on the link's one side. The calling thread moves to the other side, and stays there.
absl::Status CompareOverLink(const OutputFlags& output, const Link& link,
                             const LinkComparison& compared);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_BENCH_COMPARE_LINK_H_
