// Puts pages until it is killed. kill_test runs it.
//
//   kvstow_crash_writer FOLDER FIRST_KEY
//
// Writes one line to standard output for each put that was acknowledged as surviving kill -9: its
// key. Every fourth page is only held in memory, so that demotion runs beside; every second is hot
// and gets its cold form when memory is full.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "storage/memory_tier.h"
#include "storage/rocks_tier.h"
#include "tests/fault/crash_pages.h"

namespace kvstow {
namespace {

int Run(const std::string& folder, uint64_t first_key) {
  auto disk = OpenRocksStore({.path = folder, .budget_bytes = 64 << 20});
  if (!disk.ok()) {
    std::fprintf(stderr, "%s\n", disk.status().ToString().c_str());
    return 1;
  }
  TieredStoreParts parts;
  parts.tiers[1] = MakeMemoryTier(HostDevice());
  parts.tiers[2] = std::move(disk->tier);
  parts.catalog = std::move(disk->catalog);
  auto store =
      TieredStore::Open({.budget_bytes = {0, 1 << 20, uint64_t{1} << 30}}, std::move(parts));
  if (!store.ok() || !(*store)->SaveSpace({.id = 1}).ok()) return 1;
  (*store)->SetMakeColdForm([](const PageName& name, const SharedBytes&,
                               std::span<const SharedBytes>) -> std::optional<ColdForm> {
    return CrashColdPage(std::stoull(name.key.substr(4))).ToColdForm();
  });
  std::printf("ready\n");
  std::fflush(stdout);
  for (uint64_t key = first_key;; ++key) {
    const Ack ack = key % 4 == 0 ? Ack::kMemory : key % 64 == 1 ? Ack::kDurable : Ack::kProcess;
    const auto put = (*store)->Put(CrashPage(key).ToStore(ack));
    if (!put.ok()) {
      std::fprintf(stderr, "%s\n", put.status().ToString().c_str());
      return 1;
    }
    if (ack == Ack::kMemory) continue;
    std::printf("%llu\n", static_cast<unsigned long long>(key));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace kvstow

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER FIRST_KEY\n", argv[0]);
    return 2;
  }
  return kvstow::Run(argv[1], std::strtoull(argv[2], nullptr, 10));
}
