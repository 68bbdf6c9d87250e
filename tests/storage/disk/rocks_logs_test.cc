#include "storage/disk/rocks_logs.h"

#include <gtest/gtest.h>
#include <rocksdb/file_system.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fault/faulty_file_system.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

class LogWatchTest : public testing::Test {
 protected:
  std::unique_ptr<rocksdb::FSWritableFile> New(const std::string& name) {
    std::unique_ptr<rocksdb::FSWritableFile> file;
    EXPECT_TRUE(files_->NewWritableFile(folder_.path() + "/" + name, {}, &file, nullptr).ok());
    return file;
  }
  std::string Content(const std::string& name) {
    std::ifstream in(folder_.path() + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const TempDir folder_;
  const std::shared_ptr<FaultyFileSystem> disk_ = std::make_shared<FaultyFileSystem>(1);
  const std::shared_ptr<LogWatch> watch_ = std::make_shared<LogWatch>();
  const std::shared_ptr<rocksdb::FileSystem> files_ = WatchLogs(disk_, watch_);
};

TEST_F(LogWatchTest, CountsLogsAlone) {
  New("000001.log");
  New("000002.sst");
  New("000003.log");
  EXPECT_EQ(watch_->begun(), 2u);
  EXPECT_TRUE(watch_->failure().ok());
}

TEST_F(LogWatchTest, KeepsTheFailureOfALogToItselfAndWritesNothingBehindIt) {
  const auto log = New("1.log");
  EXPECT_TRUE(log->Append("before", {}, nullptr).ok());
  disk_->log_errors_one_in = 1;
  EXPECT_TRUE(log->Sync({}, nullptr).ok());
  disk_->log_errors_one_in = 0;
  EXPECT_EQ(watch_->failure().message(), folder_.path() + "/1.log: IO error: injected: I/O error");
  EXPECT_TRUE(log->Append("after", {}, nullptr).ok());
  EXPECT_TRUE(log->Close({}, nullptr).ok());
  EXPECT_EQ(Content("1.log"), "before");
}

TEST_F(LogWatchTest, ForgetsFailuresOfLogsThatAreNotNeeded) {
  const auto first = New("1.log"), second = New("2.log");
  disk_->log_errors_one_in = 1;
  EXPECT_TRUE(first->Sync({}, nullptr).ok());
  watch_->Forget(1);
  EXPECT_TRUE(watch_->failure().ok());
  EXPECT_TRUE(second->Sync({}, nullptr).ok());
  watch_->Forget(1);
  EXPECT_FALSE(watch_->failure().ok()) << "the second one's";
  watch_->Forget(2);
  EXPECT_TRUE(watch_->failure().ok());
}

TEST_F(LogWatchTest, ALogThatCannotBeMadeHasFailed) {
  std::filesystem::remove_all(folder_.path());
  const auto log = New("1.log");
  EXPECT_FALSE(watch_->failure().ok());
  EXPECT_TRUE(log->Append("x", {}, nullptr).ok());
  EXPECT_TRUE(log->Sync({}, nullptr).ok());
  EXPECT_EQ(watch_->begun(), 1u);
}

TEST_F(LogWatchTest, ALogBeginsOnlyAfterTheOneBeforeItIsSynced) {
  disk_->worst_order = true;
  auto first = New("1.log");
  EXPECT_TRUE(first->Append("first", {}, nullptr).ok());
  auto second = New("2.log");
  EXPECT_TRUE(second->Append("second", {}, nullptr).ok());
  disk_->CutPower();
  first.reset();
  second.reset();
  disk_->PowerOn();
  EXPECT_EQ(Content("1.log"), "first");
  EXPECT_EQ(Content("2.log"), "second");
}

TEST_F(LogWatchTest, ALogFailsWhenTheOneBeforeItCannotBeSynced) {
  const auto first = New("1.log");
  EXPECT_TRUE(first->Append("first", {}, nullptr).ok());
  disk_->log_errors_one_in = 1;
  const auto second = New("2.log");
  disk_->log_errors_one_in = 0;
  EXPECT_TRUE(second->Append("second", {}, nullptr).ok());
  EXPECT_EQ(Content("2.log"), "");
  EXPECT_EQ(watch_->failure().message(), folder_.path() + "/1.log: IO error: injected: I/O error");
  watch_->Forget(1);
  EXPECT_FALSE(watch_->failure().ok()) << "the second one's";
  const auto third = New("3.log");
  EXPECT_TRUE(third->Append("third", {}, nullptr).ok());
  EXPECT_EQ(Content("3.log"), "third");
}

TEST_F(LogWatchTest, AClosedLogIsNotSynced) {
  auto first = New("1.log");
  EXPECT_TRUE(first->Close({}, nullptr).ok());
  first.reset();
  New("2.log");
  New("3.log");
  EXPECT_TRUE(watch_->failure().ok());
}

TEST_F(LogWatchTest, FailuresOfOtherFilesAreToldAsTheyAre) {
  const auto table = New("1.sst");
  disk_->write_errors_one_in = 1;
  EXPECT_FALSE(table->Sync({}, nullptr).ok());
  EXPECT_TRUE(watch_->failure().ok());
}

}  // namespace
}  // namespace kvstow
