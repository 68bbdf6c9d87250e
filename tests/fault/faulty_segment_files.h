// Segment files under the faults of a FaultyFileSystem: one power cut cuts both, its switches and
// its space hold for both.
//
// A cut takes away what was written and not synced: each write for itself comes back whole, not at
// all, or up to a random block; what was in its place before comes back instead. A file is there
// or not.
#ifndef KVSTOW_TESTS_FAULT_FAULTY_SEGMENT_FILES_H_
#define KVSTOW_TESTS_FAULT_FAULTY_SEGMENT_FILES_H_

#include <functional>
#include <memory>
#include <string>

#include "storage/disk/segment_files.h"
#include "tests/fault/faulty_file_system.h"

namespace kvstow {

// For RocksOptions::make_files.
std::function<std::unique_ptr<SegmentFiles>(const std::string& folder, bool direct_io)>
FaultySegmentFilesOf(std::shared_ptr<FaultyFileSystem> system);

}  // namespace kvstow

#endif  // KVSTOW_TESTS_FAULT_FAULTY_SEGMENT_FILES_H_
