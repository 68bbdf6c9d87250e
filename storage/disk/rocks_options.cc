#include "storage/disk/rocks_options.h"

#include <fcntl.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/table.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

constexpr size_t kBlockCacheBytes = 32 << 20;  // of keys, places, small bodies and records

}  // namespace

bool DirectIoWorks(const std::string& folder) {
  std::string probe = absl::StrCat(folder, "/.direct-io-XXXXXX");
  const int file = mkstemp(probe.data());
  if (file < 0) return false;
  constexpr size_t kBlock = 4096;
  void* block = nullptr;
  bool works = posix_memalign(&block, kBlock, kBlock) == 0;
  const int direct = works ? open(probe.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC) : -1;
  works = direct >= 0 && pwrite(direct, block, kBlock, 0) == static_cast<ssize_t>(kBlock) &&
          pread(direct, block, kBlock, 0) == static_cast<ssize_t>(kBlock);
  if (direct >= 0) close(direct);
  std::free(block);
  close(file);
  unlink(probe.c_str());
  return works;
}

rocksdb::DBOptions DatabaseOptions(rocksdb::Env* env, bool direct_io) {
  rocksdb::DBOptions o;
  o.env = env;
  o.create_if_missing = true;
  o.create_missing_column_families = true;
  // One family's full buffer writes all of them, so that a restart has a short log to read.
  o.atomic_flush = true;
  o.max_background_jobs = 8;  // a quarter of them flush: two write buffers at once
  o.max_open_files = 256;     // with a hundred segment files below the usual limit of 1,024
  o.bytes_per_sync = 1 << 20;
  o.wal_bytes_per_sync = 1 << 20;
  o.use_direct_reads = direct_io;
  o.use_direct_io_for_flush_and_compaction = direct_io;
  o.writable_file_max_buffer_size = 4 << 20;
  o.avoid_unnecessary_blocking_io = true;
  o.verify_sst_unique_id_in_manifest = true;
  o.stats_dump_period_sec = 0;
  o.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  o.keep_log_file_num = 4;
  o.max_log_file_size = 16 << 20;
  // It waits for free space after the disk was full, and lets writes go on.
  o.sst_file_manager.reset(rocksdb::NewSstFileManager(env));
  return o;
}

std::vector<rocksdb::ColumnFamilyDescriptor> Families(uint64_t budget_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.checksum = rocksdb::kXXH3;  // CRC32C is slow in this library
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_size = std::clamp<uint64_t>(budget_bytes / 4096, 64 << 10, 8 << 20);
  std::vector<rocksdb::ColumnFamilyDescriptor> out;
  for (const char* const name : kFamilyNames) out.emplace_back(name, options);
  return out;
}

}  // namespace kvstow
