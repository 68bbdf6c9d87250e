#include "storage/disk/rocks_logs.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "storage/disk/rocks_files.h"

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

class LogFile;

// The log that was begun last, while RocksDB has it open. RocksDB closes a log when its content is
// in tables, or with the database.
class NewestLog {
 public:
  void Set(LogFile* log) {
    MutexLock lock(mu_);
    log_ = log;
  }
  void Closes(const LogFile* log) {
    MutexLock lock(mu_);
    if (log_ == log) log_ = nullptr;
  }
  // Returns the error if the log fails with this. A log that failed before is not synced.
  IOStatus Sync();

 private:
  Mutex mu_;  // held over a sync, so that the log stays open meanwhile
  LogFile* log_ KVSTOW_GUARDED_BY(mu_) = nullptr;
};

// One log. RocksDB's threads take turns at appending, and sync meanwhile.
class LogFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  LogFile(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name,
          std::shared_ptr<LogWatch> watch, uint64_t number, std::shared_ptr<NewestLog> newest)
      : FSWritableFileOwnerWrapper(std::move(file)),
        name_(std::move(name)),
        watch_(std::move(watch)),
        number_(number),
        newest_(std::move(newest)) {}
  ~LogFile() override { newest_->Closes(this); }

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
    newest_->Closes(this);
    if (!failed_) return Do([&] { return target()->Close(options, debug); });
    target()->Close(options, debug).PermitUncheckedError();
    return IOStatus::OK();
  }

  // Returns the error if the log fails with this call. After a failure it calls nothing more.
  template <typename Call>
  IOStatus Try(const Call& call) {
    if (failed_) return IOStatus::OK();
    IOStatus status = call();
    if (!status.ok()) {
      // In this order: who finds the log failed finds failure() too.
      watch_->Failed(number_, FromRocks(status, name_));
      failed_ = true;
    }
    return status;
  }
  IOStatus SyncToTheEnd() {
    return Try([&] { return target()->Sync({}, nullptr); });
  }

 private:
  template <typename Call>
  IOStatus Do(const Call& call) {
    Try(call).PermitUncheckedError();
    return IOStatus::OK();
  }

  const std::string name_;
  const std::shared_ptr<LogWatch> watch_;
  const uint64_t number_;
  const std::shared_ptr<NewestLog> newest_;
  std::atomic<bool> failed_{false};
};

IOStatus NewestLog::Sync() {
  MutexLock lock(mu_);
  return log_ == nullptr ? IOStatus::OK() : log_->SyncToTheEnd();
}

class LogFiles final : public rocksdb::FileSystemWrapper {
 public:
  LogFiles(std::shared_ptr<rocksdb::FileSystem> files, std::shared_ptr<LogWatch> watch)
      : FileSystemWrapper(std::move(files)), watch_(std::move(watch)) {}
  const char* Name() const override { return "LogFiles"; }

  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    if (!name.ends_with(".log")) return target()->NewWritableFile(name, options, file, debug);
    // RocksDB makes a log before it writes to it, while no other thread writes to the one before.
    IOStatus made = newest_->Sync();
    if (made.ok()) made = target()->NewWritableFile(name, options, file, debug);
    if (made.ok()) made = SyncFolder(name, debug);
    const uint64_t number = watch_->Begin();
    if (!made.ok()) {
      watch_->Failed(number, FromRocks(made, name));
      *file = std::make_unique<NoFile>();
      return IOStatus::OK();
    }
    auto log = std::make_unique<LogFile>(std::move(*file), name, watch_, number, newest_);
    newest_->Set(log.get());
    *file = std::move(log);
    return IOStatus::OK();
  }

 private:
  // Makes the names in the folder of `name` survive power loss.
  IOStatus SyncFolder(const std::string& name, IODebugContext* debug) {
    const std::string folder = std::filesystem::path(name).parent_path();
    std::unique_ptr<rocksdb::FSDirectory> directory;
    IOStatus s = target()->NewDirectory(folder, {}, &directory, debug);
    if (s.ok()) s = directory->FsyncWithDirOptions({}, debug, {});
    return s;
  }

  const std::shared_ptr<LogWatch> watch_;
  const std::shared_ptr<NewestLog> newest_ = std::make_shared<NewestLog>();
};

// Passes everything on, and looks for "LOG: dropping N bytes; Corruption: WHY".
class InfoLog final : public rocksdb::LoggerWrapper {
 public:
  InfoLog(std::shared_ptr<rocksdb::Logger> log, std::shared_ptr<LogWatch> watch)
      : LoggerWrapper(log.get()), log_(std::move(log)), watch_(std::move(watch)) {}

  using LoggerWrapper::Logv;
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list args) override {
    if (std::strstr(format, ": dropping %d bytes; %s") != nullptr) {
      va_list copy;
      va_copy(copy, args);
      std::array<char, 1024> text;
      std::vsnprintf(text.data(), text.size(), format, copy);
      va_end(copy);
      const std::string_view said = text.data();
      const size_t why = said.find("Corruption: ");
      if (why != said.npos && !said.substr(why).starts_with("Corruption: truncated")) {
        watch_->Damaged(std::string(said.substr(0, said.find(": dropping"))));
      }
    }
    log_->Logv(level, format, args);
  }

 private:
  const std::shared_ptr<rocksdb::Logger> log_;
  const std::shared_ptr<LogWatch> watch_;
};

}  // namespace

std::shared_ptr<rocksdb::Logger> WatchInfoLog(const std::string& folder,
                                              const rocksdb::DBOptions& options,
                                              std::shared_ptr<LogWatch> watch) {
  std::shared_ptr<rocksdb::Logger> log;
  if (!rocksdb::CreateLoggerFromOptions(folder, options, &log).ok()) return nullptr;
  return std::make_shared<InfoLog>(std::move(log), std::move(watch));
}

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

void LogWatch::Damaged(const std::string& log) {
  MutexLock lock(mu_);
  damaged_.insert(log);
}

uint64_t LogWatch::damaged() const {
  MutexLock lock(mu_);
  return damaged_.size();
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
