// kill -9 in the middle of puts, and of pages that get their cold form: every put that was
// acknowledged as surviving it is there afterwards, with its own bytes.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <set>

#include "tests/fault/crash_pages.h"
#include "tests/storage/store_fixture.h"

extern char** environ;

namespace kvstow {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

class KillTest : public StoreTest {
 protected:
  void TearDown() override {
    Kill();
    StoreTest::TearDown();
  }
  void Start(uint64_t first_key) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    std::string program = KVSTOW_BIN_DIR "/tests/kvstow_crash_writer";
    std::string folder = dir_.path(), key = std::to_string(first_key);
    char* argv[] = {program.data(), folder.data(), key.data(), nullptr};
    ASSERT_EQ(posix_spawn(&child_, program.c_str(), &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    out_ = fdopen(ends[0], "r");
    char line[32];
    ASSERT_NE(std::fgets(line, sizeof(line), out_), nullptr) << "the writer did not start";
  }
  // The form in which a page is there.
  PrfPage FormOf(uint64_t key) {
    const PrfPage hot = CrashPage(key), cold = CrashColdPage(key);
    const auto facts = store_->Find(hot.name());
    const bool is_cold =
        facts.ok() && AsString(facts->header.span()) == AsString(cold.ToStore().header.span());
    cold_ += is_cold ? 1 : 0;
    return is_cold ? cold : hot;
  }
  // The keys of the next `count` acknowledged puts, or of those until the pipe ended.
  void ReadAcks(size_t count, std::set<uint64_t>& acked) {
    unsigned long long key = 0;
    for (size_t i = 0; i < count && std::fscanf(out_, "%llu\n", &key) == 1; ++i) acked.insert(key);
  }
  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }

  int cold_ = 0;
  pid_t child_ = 0;
  FILE* out_ = nullptr;
};

TEST_F(KillTest, AcknowledgedPutsSurvive) {
  constexpr int kCycles = 5;
  std::mt19937_64 random(2026);
  std::set<uint64_t> acked;
  options_.budget_bytes = {0, 1 << 20, uint64_t{1} << 30};
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    Start(1 + cycle * 1'000'000);
    ReadAcks(20 + random() % 400, acked);
    Kill();
    ReadAcks(~size_t{0}, acked);  // those that were on their way through the pipe
    std::fclose(out_);
    Reopen();
    EXPECT_EQ(store_->Counters().damaged_records, 0u);
    for (const uint64_t key : acked) {
      const PrfPage page = FormOf(key);
      ASSERT_EQ(ReadUnchecked(page), page.sizes.size()) << "key " << key << " was acknowledged";
    }
    // What was not acknowledged may be there too; then it is whole and right.
    for (const PageName& name : store_->Pages(1)) {
      const PrfPage page = FormOf(std::stoull(name.key.substr(4)));
      EXPECT_EQ(ReadUnchecked(page), page.sizes.size()) << name.key;
    }
    EXPECT_EQ(store_->Counters().corrupt_segments + store_->Counters().lost_segments, 0u);
    EXPECT_OK(store_->CheckInvariants());
    store_.reset();
  }
  EXPECT_GE(acked.size(), kCycles * 20u);
  EXPECT_GT(cold_, 0) << "the forms were never exchanged";
}

TEST_F(KillTest, AFolderInUseIsSaidSoAndFreeAfterwards) {
  Start(1);
  const auto busy = OpenRocksStore({.path = dir_.path()});
  EXPECT_THAT(busy.status(), HasCode(StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(busy.status().message()),
              AllOf(HasSubstr(dir_.path()), HasSubstr("LOCK")));
  Kill();
  std::fclose(out_);
  EXPECT_OK(OpenRocksStore({.path = dir_.path()}).status());
}

}  // namespace
}  // namespace kvstow
