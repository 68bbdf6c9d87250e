// A file system for RocksDB that loses power, fails, fills up, lies and stalls on demand.
//
// It passes every call on to the real file system and remembers what was synced. After CutPower()
// every call fails, as for a process whose machine is gone; once the database is closed,
// PowerOn() makes the real files what such a machine could come back with:
//   - bytes of a file behind its last Sync or Fsync: none of them, those up to a random byte, or
//   (in
//     a log) those and zeros after them; each file for itself, so a later one may keep more than an
//     earlier one. Zeros in a MANIFEST, which RocksDB does not survive, come from no file system
//     that writes data before the size (ext4 by default, XFS);
//   - a file whose folder was not synced since it was made: there or not;
//   - a rename over another file, its folder not synced since: done or not.
// With `worst_order`, logs come back in the order that is worst for their reader, see there.
// Segment files are under the same faults: tests/fault/faulty_segment_files.h.
// Removals count at once. sync_file_range (RangeSync) promises nothing.
//
// The other faults are switches that tests set while the database runs. The random ones follow the
// seed, but RocksDB's threads take turns as they like: a seed narrows a run down, it does not fix
// it. Thread-safe; CutPower and the switches at any time, PowerOn with the database closed.
#ifndef KVSTOW_TESTS_FAULT_FAULTY_FILE_SYSTEM_H_
#define KVSTOW_TESTS_FAULT_FAULTY_FILE_SYSTEM_H_

#include <rocksdb/file_system.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

class FaultyFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultyFileSystem(uint64_t seed);
  const char* Name() const override { return "FaultyFileSystem"; }

  void CutPower();
  // Before the `writes`-th append, sync or new file from now on.
  void CutPowerAfter(uint64_t writes);
  // The same, counted from when the next log file is begun.
  void CutPowerAfterNewLog(uint64_t writes);
  void PowerOn();
  // A cut leaves all of the newest log (*.log), and of each older one what was synced. It removes
  // an older one whose folder was not synced.
  std::atomic<bool> worst_order{false};
  // Before PowerOn: files below the folder that were made elsewhere, and never synced here, are
  // empty from now on.
  void LoseWhatIsUnknown(const std::string& folder);

  // One of N appends, syncs and new files fails with an I/O error, or of those of logs alone;
  // 0 = none.
  std::atomic<uint32_t> write_errors_one_in{0}, log_errors_one_in{0};
  // One of N reads of tables and bodies fails, or has one bit flipped; 0 = none.
  std::atomic<uint32_t> read_errors_one_in{0};
  std::atomic<uint32_t> flips_one_in{0};
  // Lets `pass` reads of segment files pass from now on, and fails the `fail` reads after them.
  void FailReadsOfBodies(uint64_t pass, uint64_t fail);
  // Syncs of segment files fail. As on Linux, what a failed sync was for is lost: a later sync
  // answers OK and does not write it.
  std::atomic<bool> syncs_of_bodies_fail{false};
  // Syncs of logs fail. What was appended stays in them: kill -9 takes nothing of it.
  std::atomic<bool> syncs_of_logs_fail{false};
  // How long a sync takes; others' writes go on meanwhile.
  std::atomic<uint32_t> sync_millis{0};
  // The bytes that all files together may hold. Appends beyond them are refused: no space.
  std::atomic<uint64_t> space_bytes{uint64_t{1} << 60};
  // Appends and syncs, or reads of tables and bodies, wait until the switch is off again.
  void StallWrites(bool stall) { Stall(writes_stalled_, stall); }
  void StallReads(bool stall) { Stall(reads_stalled_, stall); }
  // Until some call waits in a stall.
  void WaitForStalled();

  uint64_t used_bytes();
  uint64_t flips() const { return flips_; }
  uint64_t errors() const { return errors_; }

  // FileSystem.
  using Options = rocksdb::FileOptions;
  using Debug = rocksdb::IODebugContext;
  rocksdb::IOStatus NewWritableFile(const std::string& name, const Options& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    Debug* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const Options& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       Debug* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name, const Options& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        Debug* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 Debug* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               Debug* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options, Debug* debug) override;
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* bytes, Debug* debug) override;

 private:
  friend class FaultyWritableFile;
  friend class FaultyRandomAccessFile;
  friend class FaultyDirectory;
  friend class FaultySegmentFiles;

  // A write in the middle of a file that was not synced since, and what was there before.
  struct Overwritten {
    uint64_t offset = 0;
    std::vector<uint8_t> before;
  };
  struct FileState {
    uint64_t written = 0, synced = 0;
    bool named = false;                   // its folder was synced since it was made
    std::optional<std::string> replaced;  // what a rename over it took away; until then, too
    std::vector<Overwritten> overwritten = {};
    // Blocks of 4 KiB, by offset, that a failed sync was for, and what was there before.
    std::map<uint64_t, std::vector<uint8_t>> unsyncable = {};
  };

  rocksdb::IOStatus Track(const std::string& name, rocksdb::IOStatus made,
                          std::unique_ptr<rocksdb::FSWritableFile>* file);
  // Returns the fate of a write that lets the file grow to `end`; 0 for a sync.
  rocksdb::IOStatus BeforeWrite(const std::string& name, uint64_t end);
  rocksdb::IOStatus BeforeRead();
  rocksdb::IOStatus BeforeReadOfBodies();
  rocksdb::IOStatus SyncBodies(const std::string& name);
  void MayFlip(uint8_t* bytes, size_t size);
  void Written(const std::string& name, uint64_t end);
  void Truncated(const std::string& name, uint64_t size);
  rocksdb::IOStatus Sync(const std::string& name);
  rocksdb::IOStatus FolderSynced(const std::string& folder);
  uint64_t Used() KVSTOW_REQUIRES(mu_);
  bool OneIn(uint32_t n) KVSTOW_REQUIRES(mu_) { return n > 0 && random_() % n == 0; }
  void Stall(bool& which, bool stall) KVSTOW_EXCLUDES(mu_);
  void WaitOut(const bool& which) KVSTOW_REQUIRES(mu_);
  void Lose(const std::string& name, const FileState& state) KVSTOW_REQUIRES(mu_);
  void LoseInWorstOrder() KVSTOW_REQUIRES(mu_);

  Mutex mu_;
  CondVar changed_;
  std::mt19937_64 random_ KVSTOW_GUARDED_BY(mu_);
  std::map<std::string, FileState> files_ KVSTOW_GUARDED_BY(mu_);  // those made here
  bool cut_ KVSTOW_GUARDED_BY(mu_) = false;
  uint64_t writes_left_ KVSTOW_GUARDED_BY(mu_) = 0;       // until the power is cut; 0 = it is not
  uint64_t writes_after_log_ KVSTOW_GUARDED_BY(mu_) = 0;  // what that becomes with the next log
  uint64_t reads_to_pass_ KVSTOW_GUARDED_BY(mu_) = 0;     // of segment files
  uint64_t reads_to_fail_ KVSTOW_GUARDED_BY(mu_) = 0;     // after those
  bool writes_stalled_ = false, reads_stalled_ = false;   // guarded by mu_
  int stalled_ KVSTOW_GUARDED_BY(mu_) = 0;                // calls that wait
  std::atomic<uint64_t> flips_{0}, errors_{0};
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_FAULT_FAULTY_FILE_SYSTEM_H_
