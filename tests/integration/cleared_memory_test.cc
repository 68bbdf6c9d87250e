// Pages of a dropped space leave no byte in the memory of an encrypting kvstowd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "client/client.h"
#include "tests/client/prompt.h"
#include "tests/integration/process.h"

namespace kvstow {
namespace {

using testing::Each;

// How often the text lies in the memory of a process; -1 = its memory cannot be read.
int CountInMemory(pid_t pid, const std::string& text) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::ifstream memory(absl::StrCat("/proc/", pid, "/mem"), std::ios::binary);
  if (!maps || !memory) return -1;
  int count = 0;
  std::vector<char> bytes;
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char readable = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %c", &begin, &end, &readable) != 3 ||
        readable != 'r') {
      continue;
    }
    bytes.resize(end - begin);
    memory.clear();
    memory.seekg(static_cast<std::streamoff>(begin));
    memory.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    // Where nothing comes, there is a device.
    const absl::string_view all(bytes.data(), static_cast<size_t>(memory.gcount()));
    for (size_t at = all.find(text); at != all.npos; at = all.find(text, at + 1)) ++count;
  }
  return count;
}

class ClearedMemoryTest : public testing::TestWithParam<size_t> {};

INSTANTIATE_TEST_SUITE_P(Of, ClearedMemoryTest, testing::Values(0, 4), [](const auto& param) {
  return param.param == 0 ? "Streams" : "DirectConnections";
});

TEST_P(ClearedMemoryTest, HoldsNothingOfADroppedSpace) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer has an allocator of its own";
#endif
  const TempDir dir;
  std::ofstream(dir.path("key")) << std::string(64, 'a');
  std::filesystem::permissions(dir.path("key"), std::filesystem::perms::owner_read);
  // Most pages come from disk, through the memory that the disk reads into.
  Daemon daemon("127.0.0.1:0", {"--host-bytes", "2MiB", "--disk-path", dir.path("disk"),
                                "--master-key", absl::StrCat("file:", dir.path("key"))});
  const KvSpec spec = SmallSpec();
  Prompt prompt(spec, 40 * 64, 1);
  const std::string text(prompt.pages[0].begin(), prompt.pages[0].begin() + 32);
  for (auto& page : prompt.pages) {
    for (size_t at = 0; at < page.size(); at += 4096) {
      std::copy(text.begin(), text.end(), page.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  auto client = Client::Connect({.address = daemon.address(), .direct_connections = GetParam()});
  ASSERT_TRUE(client->OpenSpace({.name = "s", .spec = spec, .recipe = "raw"}).ok());
  for (int turn = 0; turn < 3; ++turn) {  // the first may go before connections are there
    ASSERT_THAT(OutcomesOf(client->Put("s", prompt.Puts()).get()),
                Each(turn == 0 ? PageOutcome::kStored : PageOutcome::kAlreadyThere));
    Fetch fetch(spec, prompt.keys);
    ASSERT_THAT(OutcomesOf(client->Get("s", 0, fetch.gets).get()), Each(PageOutcome::kHit));
  }
  const int held = CountInMemory(daemon.pid(), text);
  if (held < 0) GTEST_SKIP() << "the memory of another process cannot be read here";
  EXPECT_GT(held, 0);
  client.reset();  // a connection of gRPC keeps what it read last
  ASSERT_TRUE(Client::Connect({.address = daemon.address()})->DropSpace("s").ok());
  int left = -1;
  for (const Time end = Clock::Real().Now() + std::chrono::seconds(20);
       left != 0 && Clock::Real().Now() < end;) {
    left = CountInMemory(daemon.pid(), text);
  }
  EXPECT_EQ(left, 0);
}

}  // namespace
}  // namespace kvstow
