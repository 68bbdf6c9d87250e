#include "storage/disk/rocks_status.h"

#include <rocksdb/status.h>

#include "absl/strings/str_cat.h"

namespace kvstow {

absl::Status FromRocks(const rocksdb::Status& s, const std::string& folder) {
  if (s.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat(folder, ": ", s.ToString());
  if (s.IsNotFound() || s.IsPathNotFound()) return absl::NotFoundError(text);
  if (s.IsNoSpace() || s.subcode() == rocksdb::Status::kSpaceLimit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; the disk is full: free space, writing resumes by itself"));
  }
  if (s.IsCorruption()) return absl::DataLossError(text);
  return absl::UnavailableError(text);
}

}  // namespace kvstow
