// RocksDB with blob files and everything else as it comes, as a tier: what the disk tier is
// measured against. Thread-safe.
#ifndef KVSTOW_TESTS_BENCH_DEFAULT_BLOB_DB_H_
#define KVSTOW_TESTS_BENCH_DEFAULT_BLOB_DB_H_

#include <memory>
#include <string>

#include "storage/tier.h"

namespace kvstow {

// Null when the folder cannot be used. An empty Write flushes.
std::unique_ptr<Tier> OpenDefaultBlobDb(const std::string& folder);

}  // namespace kvstow

#endif  // KVSTOW_TESTS_BENCH_DEFAULT_BLOB_DB_H_
