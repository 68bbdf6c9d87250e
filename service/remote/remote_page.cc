#include "service/remote/remote_page.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr uint32_t kMagic = 0x5652766b;  // "kvRV" as it stands in a value
constexpr size_t kFrameBytes = 32;

uint64_t BoundDigest(const RemoteTag& tag, RemoteKind kind, size_t index, uint64_t digest) {
  ByteWriter out;
  out.PutBytes(tag.bytes);
  out.Put(static_cast<uint8_t>(kind));
  out.Put(static_cast<uint16_t>(index));
  out.Put(digest);
  return Xxh3(AsBytes(out.bytes()));
}

SharedBytes Frame(const RemoteTag& tag, RemoteKind kind, size_t index, uint64_t bytes,
                  uint64_t digest) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kRemoteVersion);
  out.Put(static_cast<uint8_t>(kind));
  out.Put(uint8_t{0});
  out.Put(bytes);
  out.Put(digest);
  out.Put(BoundDigest(tag, kind, index, digest));
  return SharedBytes::Take(std::move(out).Take());
}

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

absl::StatusOr<FramedBody> OpenFramed(const RemoteTag& tag, RemoteKind kind, size_t index,
                                      const SharedBytes& value) {
  if (value.size() < kFrameBytes) return absl::DataLossError("a remote value is cut short");
  ByteReader in(value.span().first(kFrameBytes));
  if (in.Get<uint32_t>() != kMagic) return absl::DataLossError("a remote value has no magic");
  const auto version = in.Get<uint16_t>();
  const auto of_kind = in.Get<uint8_t>();
  const auto flags = in.Get<uint8_t>();
  const auto bytes = in.Get<uint64_t>();
  const auto digest = in.Get<uint64_t>();
  if (version != kRemoteVersion || flags != 0) {
    return absl::FailedPreconditionError(absl::StrCat("remote value version ", version,
                                                      " is not known here, only ", kRemoteVersion));
  }
  if (of_kind != static_cast<uint8_t>(kind) ||
      in.Get<uint64_t>() != BoundDigest(tag, kind, index, digest)) {
    return absl::DataLossError("a remote value belongs elsewhere");
  }
  if (bytes != value.size() - kFrameBytes) {
    return absl::DataLossError("a remote value has another length than it says");
  }
  FramedBody out{.body = value.Slice(kFrameBytes, bytes), .digest = digest};
  if (Xxh3(out.body.span()) != digest) {
    return absl::DataLossError("a remote value fails its digest");
  }
  return out;
}

std::vector<SharedBytes> FramedValue(const RemoteTag& tag, RemoteKind kind, size_t index,
                                     SharedBytes body) {
  SharedBytes frame = Frame(tag, kind, index, body.size(), Xxh3(body.span()));
  return {std::move(frame), std::move(body)};
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

std::vector<SharedBytes> RecordValue(const RemoteTag& tag, PageRecord record) {
  record.number = 1;  // every server gives its own
  record.name.space = 0;
  record.parent.reset();
  return FramedValue(tag, RemoteKind::kRecord, 0, SharedBytes::Take(SerializePageRecord(record)));
}

std::vector<SharedBytes> SegmentValue(const RemoteTag& tag, size_t index, const SegmentFacts& facts,
                                      const SharedBytes& body) {
  return {Frame(tag, RemoteKind::kSegment, index, body.size(), facts.digest), body};
}

uint64_t StoredBytes(const PageRecord& record) {
  uint64_t bytes = record.header.size();
  for (const SegmentFacts& facts : record.facts) bytes += facts.bytes;
  return bytes;
}

absl::StatusOr<PageRecord> ParseRecordValue(const RemoteTag& tag, absl::string_view key,
                                            const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(const FramedBody framed, OpenFramed(tag, RemoteKind::kRecord, 0, value));
  KVSTOW_ASSIGN_OR_RETURN(PageRecord record, ParsePageRecord(framed.body.span()));
  if (record.name.key != key) return absl::DataLossError("a remote page has another key");
  if (record.facts.empty()) return absl::DataLossError("a remote page has no segments");
  return record;
}

absl::StatusOr<SharedBytes> ParseSegmentValue(const RemoteTag& tag, size_t index,
                                              const SegmentFacts& facts, const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(FramedBody framed, OpenFramed(tag, RemoteKind::kSegment, index, value));
  if (framed.digest != facts.digest || framed.body.size() != facts.bytes) {
    return absl::AbortedError("a remote segment is of another coding of its page");
  }
  return std::move(framed.body);
}

}  // namespace kvstow
