// RocksDB's log files, watched: how many it began, which of them failed, and which were damaged.
//
// RocksDB 7.8 with assertions, which is what Debian ships, ends the process when a log fails while
// another of its threads is about to touch it. So it does not hear of that: once a log cannot be
// made, appended to or synced, nothing more is written to it, and RocksDB is told that all went
// well. It is the database's part to ask for failure() after every write, and after one to write
// all buffers to tables, which makes the logs before needless.
//
// What it cannot read of a log when it opens, and what comes after that, it leaves out, and says so
// in its info log alone. A log that merely ends in the middle of a record was being written when
// the process or the power went; one with a whole record that is wrong is damaged.
//
// Thread-safe.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_LOGS_H_
#define KVSTOW_STORAGE_DISK_ROCKS_LOGS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace rocksdb {
struct DBOptions;
class FileSystem;
class Logger;
}  // namespace rocksdb

namespace kvstow {

class LogWatch {
 public:
  // A log begins: its number, counted from 1.
  uint64_t Begin() { return ++begun_; }
  void Failed(uint64_t log, const absl::Status& status);

  uint64_t begun() const { return begun_; }
  // What the first log that failed said; OK when none did, or all were forgotten.
  absl::Status failure() const;
  // Failures of the logs up to this one no longer matter.
  void Forget(uint64_t last);

  void Damaged(const std::string& log);
  uint64_t damaged() const;  // logs

 private:
  std::atomic<uint64_t> begun_{0};
  std::atomic<bool> any_failed_{false};  // so that the usual case takes no lock
  mutable Mutex mu_;
  uint64_t last_failed_ KVSTOW_GUARDED_BY(mu_) = 0;
  absl::Status failure_ KVSTOW_GUARDED_BY(mu_);
  std::set<std::string> damaged_ KVSTOW_GUARDED_BY(mu_);
};

// `files`, but that what goes wrong with a log (a file *.log) is told to `watch` alone.
std::shared_ptr<rocksdb::FileSystem> WatchLogs(std::shared_ptr<rocksdb::FileSystem> files,
                                               std::shared_ptr<LogWatch> watch);

// The info log that RocksDB would make, read for what it says of damaged logs. Null when it cannot
// be made.
std::shared_ptr<rocksdb::Logger> WatchInfoLog(const std::string& folder,
                                              const rocksdb::DBOptions& options,
                                              std::shared_ptr<LogWatch> watch);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_LOGS_H_
