#include "service/remote/remote_tag.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"

namespace kvstow {
namespace {

ByteWriter BeginTag(absl::string_view what, const Space& space) {
  ByteWriter out;
  for (const absl::string_view field :
       {what, absl::string_view(space.tenant), absl::string_view(space.name),
        AsString(space.fingerprint)}) {
    out.PutString16(field);
  }
  return out;
}

RemoteTag EndTag(const ByteWriter& fields) {
  const Sha256Digest digest = Sha256(AsBytes(fields.bytes()));
  RemoteTag tag;
  std::copy_n(digest.begin(), tag.bytes.size(), tag.bytes.begin());
  return tag;
}

std::string NameOf(absl::string_view prefix, const RemoteTag& tag) {
  return absl::StrCat(prefix, ":{", HexOf(tag.bytes), "}:");
}

}  // namespace

RemoteTag TagOf(const Space& space, uint64_t generation, absl::string_view key) {
  ByteWriter out = BeginTag("kvstow remote page 1", space);
  out.Put(generation);
  out.PutString16(key);
  return EndTag(out);
}

RemoteTag NameTagOf(absl::string_view tenant, absl::string_view space) {
  ByteWriter out;
  for (const absl::string_view field : {absl::string_view("kvstow remote name 1"), tenant, space}) {
    out.PutString16(field);
  }
  return EndTag(out);
}

RemoteTag SpaceTagOf(const Space& space) {
  return EndTag(BeginTag("kvstow remote space 1", space));
}

RemoteTag CalibrationTagOf(absl::string_view tenant, const CalibrationId& id) {
  ByteWriter out;
  out.PutString16("kvstow remote calibration 1");
  out.PutString16(tenant);
  out.PutString16(AsString(id));
  return EndTag(out);
}

RemoteTag KeyTagOf(absl::string_view tenant) {
  ByteWriter out;
  out.PutString16("kvstow remote key 1");
  out.PutString16(tenant);
  return EndTag(out);
}

std::string RecordName(absl::string_view prefix, const RemoteTag& tag) {
  return absl::StrCat(NameOf(prefix, tag), "r");
}

std::string SegmentName(absl::string_view prefix, const RemoteTag& tag, size_t index) {
  return absl::StrCat(NameOf(prefix, tag), index);
}

std::string PurgeName(absl::string_view prefix, const RemoteTag& space) {
  return absl::StrCat(NameOf(prefix, space), "p");
}

std::string SpaceName(absl::string_view prefix, const RemoteTag& name) {
  return absl::StrCat(NameOf(prefix, name), "s");
}

std::string CalibrationName(absl::string_view prefix, const RemoteTag& calibration) {
  return absl::StrCat(NameOf(prefix, calibration), "c");
}

std::string CalibrationPartName(absl::string_view prefix, const RemoteTag& calibration,
                                size_t index) {
  return absl::StrCat(NameOf(prefix, calibration), "c", index);
}

std::string KeyName(absl::string_view prefix, const RemoteTag& tenant) {
  return absl::StrCat(NameOf(prefix, tenant), "k");
}

}  // namespace kvstow
