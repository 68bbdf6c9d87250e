// Records of spaces in the database.
#include <rocksdb/write_batch.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "storage/disk/rocks_database.h"
#include "storage/record.h"

namespace kvstow {

absl::Status Database::PutSpace(const SpaceRecord& space) {
  Batch batch;
  batch.Put(families_[kSpaces], SpaceRecordKey(space.id), SerializeSpaceRecord(space));
  return Write(batch, Ack::kDurable);
}

absl::Status Database::EraseSpace(SpaceId id) {
  KVSTOW_RETURN_IF_ERROR(SettleFailed());
  // Its pages are gone for good before the space is: none comes back without it.
  KVSTOW_RETURN_IF_ERROR(SyncLogs());
  MutexLock lock(spaces_mu_);
  ByteWriter last;
  last.Put(std::max(id, last_erased_space()));
  Batch batch;
  batch.Delete(families_[kSpaces], SpaceRecordKey(id));
  batch.Put(families_[kDefault], kErasedSpaceKey, last.bytes());
  return Write(batch, Ack::kDurable);
}

SpaceId Database::last_erased_space() {
  const auto value = Get(kDefault, kErasedSpaceKey);
  return value.ok() ? ByteReader(AsBytes(*value)).Get<SpaceId>() : 0;
}

}  // namespace kvstow
