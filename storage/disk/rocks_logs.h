// Watches RocksDB's log files: how many it began, which of them failed, and which were damaged.
//
// No log begins before the log before it survives power loss, with its name. Otherwise a power cut
// could take the end of a log and leave what is in the next one: a hole. RocksDB reads such logs
// one after the other, and finds nothing amiss.
//
// RocksDB 7.8 with assertions, as Debian ships it, ends the process when a log fails while another
// of its threads is about to touch that log. So the watch hides the failure. Once a log cannot be
// made, appended to or synced, nothing more is written to it, and RocksDB is told that all went
// well. A log that begins while the log before it cannot be synced fails, too. The database must
// ask for failure() after every write. After a failure it must write all buffers to tables, which
// makes the older logs needless.
//
// When RocksDB opens, it leaves out the unreadable part of a log and what comes after it, and
// reports that in its info log alone. A log that merely ends in the middle of a record was being
// written when the process or the power went. A log with a whole record that is wrong is damaged.
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
  // Records that a log begins. Returns its number, counted from 1.
  uint64_t Begin() { return ++begun_; }
  void Failed(uint64_t log, const absl::Status& status);

  uint64_t begun() const { return begun_; }
  // Returns the error of the first log that failed. Returns OK when none failed, or all failures
  // were forgotten.
  absl::Status failure() const;
  // Forgets the failures when none is of a log after number `last`.
  void Forget(uint64_t last);

  void Damaged(const std::string& log);
  uint64_t damaged() const;  // number of damaged logs

 private:
  std::atomic<uint64_t> begun_{0};
  std::atomic<bool> any_failed_{false};  // spares the usual case the lock
  mutable Mutex mu_;
  uint64_t last_failed_ KVSTOW_GUARDED_BY(mu_) = 0;
  absl::Status failure_ KVSTOW_GUARDED_BY(mu_);
  std::set<std::string> damaged_ KVSTOW_GUARDED_BY(mu_);
};

// Returns `files` with two changes. It syncs a log (a file *.log) before the next one begins. It
// reports the failures of a log to `watch` alone.
std::shared_ptr<rocksdb::FileSystem> WatchLogs(std::shared_ptr<rocksdb::FileSystem> files,
                                               std::shared_ptr<LogWatch> watch);

// Returns the info log that RocksDB would make, and reads in it what RocksDB says of damaged logs.
// Returns null when it cannot make the log.
std::shared_ptr<rocksdb::Logger> WatchInfoLog(const std::string& folder,
                                              const rocksdb::DBOptions& options,
                                              std::shared_ptr<LogWatch> watch);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_LOGS_H_
