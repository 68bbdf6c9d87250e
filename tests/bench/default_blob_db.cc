#include "tests/bench/default_blob_db.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <utility>
#include <vector>

#include "storage/record.h"

namespace kvstow {
namespace {

class DefaultBlobDb final : public Tier {
 public:
  explicit DefaultBlobDb(rocksdb::DB* db) : db_(db) {}

  std::string name() const override { return "BlobDB as it comes"; }
  bool holds_bytes() const override { return true; }
  absl::Status Write(std::span<const SegmentBody> bodies) override {
    if (bodies.empty()) return Of(db_->Flush({}));
    rocksdb::WriteBatch batch;
    for (const SegmentBody& body : bodies) {
      batch.Put(SegmentKey(body.id),
                {reinterpret_cast<const char*>(body.bytes.data()), body.bytes.size()});
    }
    return Of(db_->Write({}, &batch));
  }
  std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) override {
    std::vector<absl::StatusOr<SharedBytes>> out;
    for (const auto& [id, space, facts] : expected) {
      std::string value;
      const rocksdb::Status s = db_->Get({}, SegmentKey(id), &value);
      if (s.ok()) {
        out.push_back(SharedBytes::Take(std::move(value)));
      } else {
        out.push_back(Of(s));
      }
    }
    return out;
  }
  absl::Status Erase(std::span<const SegmentId> ids) override {
    absl::Status s;
    for (const SegmentId& id : ids) s.Update(Of(db_->Delete({}, SegmentKey(id))));
    return s;
  }

 private:
  static absl::Status Of(const rocksdb::Status& s) {
    return s.ok() ? absl::OkStatus() : absl::UnavailableError(s.ToString());
  }
  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace

std::unique_ptr<Tier> OpenDefaultBlobDb(const std::string& folder) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.enable_blob_files = true;
  rocksdb::DB* db = nullptr;
  if (!rocksdb::DB::Open(options, folder + "/blobdb", &db).ok()) return nullptr;
  return std::make_unique<DefaultBlobDb>(db);
}

}  // namespace kvstow
