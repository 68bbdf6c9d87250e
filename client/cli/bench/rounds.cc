#include "client/cli/bench/rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/bench/child.h"
#include "client/cli/bench/load.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

std::string KeyOf(uint32_t client, uint32_t value) { return absl::StrCat("c", client, "-", value); }

// Puts, gets and deletes with one peer.
absl::Status RunRound(Peer& peer, size_t index, uint32_t clients, const RoundsPlan& plan,
                      const std::vector<std::vector<uint8_t>>& pages, Rows& rows) {
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<Item>> items(clients);
  const size_t page = pages[0].size();
  for (uint32_t c = 0; c < clients; ++c) {
    KVSTOW_ASSIGN_OR_RETURN(sessions.emplace_back(), peer.Connect());
    const std::span<uint8_t> buffer = sessions[c]->Buffer(page * plan.batch);
    for (uint32_t i = 0; i < plan.batch; ++i)
      std::ranges::copy(pages[c], buffer.begin() + static_cast<ptrdiff_t>(i * page));
    for (uint32_t v = 0; v < plan.values; ++v)
      items[c].push_back({KeyOf(c, v), buffer.subspan(v % plan.batch * page, page)});
  }
  const std::pair<const char*, Call> operations[] = {{"put", &Session::Put},
                                                     {"get", &Session::Get}};
  for (const auto& [operation, call] : operations) {
    KVSTOW_ASSIGN_OR_RETURN(Sample sample, Measure(peer, sessions, items, plan.batch, {call}));
    rows[{operation, clients, index}].push_back(std::move(sample));
  }
  for (uint32_t c = 0; c < clients; ++c) {
    for (const Item& item : items[c]) KVSTOW_RETURN_IF_ERROR(sessions[c]->Delete(item.key));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Sample> Measure(const Peer& peer,
                               const std::vector<std::unique_ptr<Session>>& sessions,
                               const std::vector<std::vector<Item>>& items, size_t batch,
                               const Calls& calls) {
  const auto clients = static_cast<uint32_t>(sessions.size());
  std::vector<std::vector<double>> us(clients);
  std::vector<absl::Status> status(clients);
  const MachineTime before = TimeOfMachine();
  const double cpu = peer.CpuSeconds() + OwnCpuSeconds();
  const double seconds = OnEveryClient(clients, [&](uint32_t c) {
    if (calls.first != nullptr) status[c] = (*sessions[c].*calls.first)(items[c]);
    for (std::span<const Item> left = items[c]; !left.empty() && status[c].ok();) {
      const auto some = left.first(std::min(batch, left.size()));
      left = left.subspan(some.size());
      const Time start = Clock::Real().Now();
      status[c] = (*sessions[c].*calls.each)(some);
      us[c].push_back(SecondsSince(start) * 1e6);
    }
  });
  Sample sample;
  uint64_t bytes = 0;
  for (const std::vector<Item>& of_client : items) {
    for (const Item& item : of_client) bytes += item.value.size();
  }
  sample.gbps = GigabytesPerSecond(bytes, seconds);
  sample.cpu_s_per_gb =
      (peer.CpuSeconds() + OwnCpuSeconds() - cpu) / (static_cast<double>(bytes) * 1e-9);
  sample.busy = TimeOfMachine().BusySince(before);
  for (uint32_t c = 0; c < clients; ++c) {
    if (!status[c].ok())
      return absl::Status(status[c].code(), absl::StrCat(peer.name(), ": ", status[c].message()));
    sample.us.insert(sample.us.end(), us[c].begin(), us[c].end());
  }
  return sample;
}

absl::StatusOr<Rows> RunRounds(const RoundsPlan& plan,
                               const std::vector<std::unique_ptr<Peer>>& peers) {
  std::vector<std::vector<uint8_t>> pages;
  for (uint32_t c = 0; c < *std::ranges::max_element(plan.clients); ++c)
    pages.push_back(MakePage(plan.spec, c));
  Rows rows, warm_up;
  Progress progress("comparing", (plan.rounds + 1) * plan.clients.size() * peers.size(), "runs");
  size_t done = 0;
  for (uint32_t round = 0; round <= plan.rounds; ++round) {
    for (const uint32_t clients : plan.clients) {
      for (size_t p = 0; p < peers.size(); ++p) {
        KVSTOW_RETURN_IF_ERROR(
            RunRound(*peers[p], p, clients, plan, pages, round == 0 ? warm_up : rows));
        progress.Update(++done);
      }
    }
  }
  return rows;
}

Sample Summary(const std::vector<Sample>& samples) {
  Sample out;
  std::vector<double> gbps, cpu, busy;
  for (const Sample& s : samples) {
    gbps.push_back(s.gbps);
    cpu.push_back(s.cpu_s_per_gb);
    busy.push_back(s.busy);
    out.us.insert(out.us.end(), s.us.begin(), s.us.end());
  }
  std::sort(out.us.begin(), out.us.end());
  out.gbps = Median(gbps);
  out.cpu_s_per_gb = Median(cpu);
  out.busy = Median(busy);
  return out;
}

bool IsRival(const std::string& name) {
  return absl::StartsWith(name, "redis") || absl::StartsWith(name, "memcached");
}

}  // namespace kvstow::cli
