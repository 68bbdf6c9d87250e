#include "storage/rocks_logs.h"

#include <rocksdb/file_system.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "storage/rocks_database.h"

namespace kvstow {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

// Stands for a log that could not be made.
class NoFile final : public rocksdb::FSWritableFile {
 public:
  using FSWritableFile::Append;
  IOStatus Append(const Slice&, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }
};

// One log. RocksDB's threads take turns at appending, and sync meanwhile.
class LogFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  LogFile(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name,
          std::shared_ptr<LogWatch> watch, uint64_t number)
      : FSWritableFileOwnerWrapper(std::move(file)),
        name_(std::move(name)),
        watch_(std::move(watch)),
        number_(number) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return Do([&] { return target()->Append(data, options, debug); });
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    return Do([&] { return target()->Append(data, options, info, debug); });
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    return Do([&] { return target()->Truncate(size, options, debug); });
  }
  IOStatus Flush(const IOOptions& options, IODebugContext* debug) override {
    return Do([&] { return target()->Flush(options, debug); });
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return Do([&] { return target()->Sync(options, debug); });
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Do([&] { return target()->Fsync(options, debug); });
  }
  IOStatus RangeSync(uint64_t offset, uint64_t size, const IOOptions& options,
                     IODebugContext* debug) override {
    return Do([&] { return target()->RangeSync(offset, size, options, debug); });
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    if (!failed_) return Do([&] { return target()->Close(options, debug); });
    target()->Close(options, debug).PermitUncheckedError();
    return IOStatus::OK();
  }

 private:
  template <typename Call>
  IOStatus Do(const Call& call) {
    if (failed_) return IOStatus::OK();
    if (const IOStatus status = call(); !status.ok()) {
      // In this order: who finds the log failed finds failure() too.
      watch_->Failed(number_, FromRocks(status, name_));
      failed_ = true;
    }
    return IOStatus::OK();
  }

  const std::string name_;
  const std::shared_ptr<LogWatch> watch_;
  const uint64_t number_;
  std::atomic<bool> failed_{false};
};

class LogFiles final : public rocksdb::FileSystemWrapper {
 public:
  LogFiles(std::shared_ptr<rocksdb::FileSystem> files, std::shared_ptr<LogWatch> watch)
      : FileSystemWrapper(std::move(files)), watch_(std::move(watch)) {}
  const char* Name() const override { return "LogFiles"; }

  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    IOStatus made = target()->NewWritableFile(name, options, file, debug);
    if (!name.ends_with(".log")) return made;
    const uint64_t number = watch_->Begin();
    if (!made.ok()) {
      watch_->Failed(number, FromRocks(made, name));
      *file = std::make_unique<NoFile>();
    } else {
      *file = std::make_unique<LogFile>(std::move(*file), name, watch_, number);
    }
    return IOStatus::OK();
  }

 private:
  const std::shared_ptr<LogWatch> watch_;
};

}  // namespace

absl::Status LogWatch::failure() const {
  if (!any_failed_) return absl::OkStatus();
  MutexLock lock(mu_);
  return failure_;
}

void LogWatch::Forget(uint64_t last) {
  MutexLock lock(mu_);
  if (last_failed_ > last) return;
  failure_ = absl::OkStatus();
  any_failed_ = false;
}

void LogWatch::Failed(uint64_t log, const absl::Status& status) {
  MutexLock lock(mu_);
  last_failed_ = std::max(last_failed_, log);
  if (failure_.ok()) failure_ = status;
  any_failed_ = true;
}

std::shared_ptr<rocksdb::FileSystem> WatchLogs(std::shared_ptr<rocksdb::FileSystem> files,
                                               std::shared_ptr<LogWatch> watch) {
  return std::make_shared<LogFiles>(std::move(files), std::move(watch));
}

}  // namespace kvstow
