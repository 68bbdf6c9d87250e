// The setup of the disk tier's database: its column families and RocksDB's options.
// docs/decisions/0042-disk-values.md has the measurements behind them. Free functions; thread-safe.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_OPTIONS_H_
#define KVSTOW_STORAGE_DISK_ROCKS_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace rocksdb {
class Env;
struct ColumnFamilyDescriptor;
struct DBOptions;
}  // namespace rocksdb

namespace kvstow {

// Column families, in the order in which they are opened. RocksDB insists on "default". `tables` is
// the place for calibration tables.
enum Family { kDefault, kSpaces, kPages, kSegments, kTables, kFamilies };
inline constexpr std::array<const char*, kFamilies> kFamilyNames = {"default", "spaces", "pages",
                                                                    "segments", "tables"};

// Returns whether files in this folder can be read and written past the page cache.
bool DirectIoWorks(const std::string& folder);
// `env` must outlive the database.
rocksdb::DBOptions DatabaseOptions(rocksdb::Env* env, bool direct_io);
// `budget_bytes` is that of RocksOptions.
std::vector<rocksdb::ColumnFamilyDescriptor> Families(uint64_t budget_bytes);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_OPTIONS_H_
