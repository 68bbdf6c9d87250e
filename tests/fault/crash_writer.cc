// Puts pages until it is killed. kill_test runs it.
//
//   kvstow_crash_writer FOLDER FIRST_KEY
//
// Writes a line to standard output for each put that was acknowledged as surviving kill -9, "put
// KEY", before each delete, "deleting KEY", and when it was acknowledged, "deleted KEY". Every
// fourth page is only held in memory, so that demotion runs beside; every second is hot and gets
// its cold form when memory is full; of the rest some are deleted soon.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"
#include "storage/disk/rocks_tier.h"
#include "storage/tiers/memory_tier.h"
#include "tests/fault/crash_pages.h"
#include "tests/storage/test_keys.h"

namespace kvstow {
namespace {

void Say(const char* what, uint64_t key) {
  std::printf("%s %llu\n", what, static_cast<unsigned long long>(key));
  std::fflush(stdout);
}

int Run(const std::string& folder, uint64_t first_key) {
  auto disk = OpenRocksStore({.path = folder, .budget_bytes = 64 << 20, .keys = KeysOfRun()});
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
  (*store)->cooling().SetMakeColdForm([](const PageName& name, const SharedBytes&,
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
    if (ack != Ack::kMemory) Say("put", key);
    if (key % 8 != 3 || key < first_key + 2) continue;
    Say("deleting", key - 2);
    if ((*store)->Delete(CrashPage(key - 2).name(), true).ok()) Say("deleted", key - 2);
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
