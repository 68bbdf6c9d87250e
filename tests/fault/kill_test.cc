// kill -9 in the middle of puts, deletes, and of pages that get their cold form: every put that was
// acknowledged as surviving it is there afterwards, with its own bytes, and what was deleted is
// not. KVSTOW_KILL_CYCLES=N kills N times.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <set>

#include "tests/fault/crash_pages.h"
#include "tests/paths.h"
#include "tests/storage/number_from_env.h"
#include "tests/storage/store/store_fixture.h"

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
    std::string program = ProgramPath("tests/kvstow_crash_writer");
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
    const auto facts = store_->residency().Find(hot.name());
    const bool is_cold =
        facts.ok() && AsString(facts->header.span()) == AsString(cold.ToStore().header.span());
    cold_ += is_cold ? 1 : 0;
    return is_cold ? cold : hot;
  }
  // Takes in what the writer says next, up to `count` lines or until the pipe ends.
  void Listen(size_t count) {
    char what[16];
    unsigned long long key = 0;
    for (size_t i = 0; i < count && std::fscanf(out_, "%15s %llu\n", what, &key) == 2; ++i) {
      const std::string said = what;
      if (said == "put") acked_.insert(key);
      if (said == "deleting") acked_.erase(key);
      if (said == "deleted") deleted_.insert(key);
    }
  }
  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }

  std::set<uint64_t> acked_, deleted_;
  int cold_ = 0;
  pid_t child_ = 0;
  FILE* out_ = nullptr;
};

TEST_F(KillTest, AcknowledgedPutsSurvive) {
  const uint64_t cycles = NumberFromEnv("KVSTOW_KILL_CYCLES", 5);
  std::mt19937_64 random(2026);
  options_.budget_bytes = {0, 1 << 20, uint64_t{1} << 30};
  for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
    SCOPED_TRACE(absl::StrCat("cycle ", cycle));
    Start(1 + cycle * 1'000'000);
    Listen(20 + random() % 400);
    Kill();
    Listen(~size_t{0});  // what was on its way through the pipe
    std::fclose(out_);
    Reopen();
    EXPECT_EQ(store_->residency().Counters().damaged_records, 0u);
    for (const uint64_t key : acked_) {
      const PrfPage page = FormOf(key);
      ASSERT_EQ(ReadUnchecked(page), page.sizes.size()) << "key " << key << " was acknowledged";
    }
    for (const uint64_t key : deleted_) {
      EXPECT_FALSE(store_->residency().Find(CrashPage(key).name()).ok())
          << "key " << key << " was deleted";
    }
    // Pages without an acknowledgement may be there too; then they are whole and right.
    for (const PageName& name : store_->residency().Pages(1)) {
      const PrfPage page = FormOf(std::stoull(name.key.substr(4)));
      EXPECT_EQ(ReadUnchecked(page), page.sizes.size()) << name.key;
    }
    EXPECT_EQ(store_->residency().Counters().corrupt_segments +
                  store_->residency().Counters().lost_segments,
              0u);
    EXPECT_OK(store_->residency().CheckInvariants());
    store_.reset();
  }
  EXPECT_GE(acked_.size(), cycles * 10);
  EXPECT_FALSE(deleted_.empty());
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
