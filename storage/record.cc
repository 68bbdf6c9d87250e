#include "storage/record.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// "kvPG" and "kvSP" as they stand in a file.
constexpr uint32_t kPageMagic = 0x4750766b;
constexpr uint32_t kSpaceMagic = 0x5053766b;
constexpr uint16_t kWholeFlag = 1;
constexpr uint16_t kHotFlag = 2;     // another form is to come
constexpr uint16_t kParentFlag = 4;  // a field more
constexpr uint16_t kPageFlags = kWholeFlag | kHotFlag | kParentFlag;
constexpr uint16_t kTenantFlag = 1;  // of a space: a field more
constexpr size_t kFactsBytes = sizeof(uint32_t) + sizeof(float) + sizeof(uint64_t);

ByteWriter Begin(uint32_t magic, uint16_t flags) {
  ByteWriter out;
  out.Put(magic);
  out.Put(kRecordVersion);
  out.Put(flags);
  return out;
}

std::string Seal(ByteWriter out) {
  out.Put(Xxh3(AsBytes(out.bytes())));
  return std::move(out).Take();
}

struct Opened {
  ByteReader reader;
  uint16_t flags = 0;
};

// The record's fields, after its magic, digest and version were checked in this order: a version
// is only believed when the record is whole.
absl::StatusOr<Opened> OpenRecord(std::span<const uint8_t> bytes, uint32_t magic,
                                  uint16_t known_flags) {
  constexpr size_t kDigest = sizeof(uint64_t);
  if (bytes.size() < 8 + kDigest) {
    return absl::DataLossError(absl::StrCat("a record of ", bytes.size(), " bytes is cut short"));
  }
  ByteReader digest(bytes.last(kDigest));
  ByteReader reader(bytes.first(bytes.size() - kDigest));
  if (reader.Get<uint32_t>() != magic) return absl::DataLossError("a record without its magic");
  if (digest.Get<uint64_t>() != Xxh3(bytes.first(bytes.size() - kDigest))) {
    return absl::DataLossError("a record that fails its digest");
  }
  if (const auto version = reader.Get<uint16_t>(); version != kRecordVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("record version ", version, " is not known here, only ", kRecordVersion));
  }
  const auto flags = reader.Get<uint16_t>();
  if ((flags & ~known_flags) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("record flags ", flags, " are not known here, only ", known_flags));
  }
  return Opened{reader, flags};
}

std::string BigEndian(uint64_t value, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) out[bytes - 1 - i] = static_cast<char>(value >> (8 * i));
  return out;
}

}  // namespace

std::string SerializePageRecord(const PageRecord& record) {
  const int flags = (record.whole ? kWholeFlag : 0) | (record.hot ? kHotFlag : 0) |
                    (record.parent.has_value() ? kParentFlag : 0);
  ByteWriter out = Begin(kPageMagic, static_cast<uint16_t>(flags));
  out.Put(record.number);
  out.Put(record.name.space);
  out.PutString16(record.name.key);
  out.PutBytes(record.raw_digest.bytes);
  out.Put(record.raw_bytes);
  out.Put(record.first_position);
  out.Put(record.tokens);
  if (record.parent.has_value()) out.Put(*record.parent);
  out.Put(static_cast<uint32_t>(record.header.size()));
  out.PutBytes(record.header.span());
  out.Put(static_cast<uint32_t>(record.facts.size()));
  for (const SegmentFacts& facts : record.facts) {
    out.Put(facts.bytes);
    out.Put(facts.gain);
    out.Put(facts.digest);
  }
  return Seal(std::move(out));
}

std::string SerializeSpaceRecord(const SpaceRecord& record) {
  ByteWriter out = Begin(kSpaceMagic, record.tenant.empty() ? uint16_t{0} : kTenantFlag);
  out.Put(record.id);
  if (!record.tenant.empty()) out.PutString16(record.tenant);
  out.Put(static_cast<uint32_t>(record.bytes.size()));
  out.PutBytes(record.bytes.span());
  return Seal(std::move(out));
}

absl::StatusOr<PageRecord> ParsePageRecord(std::span<const uint8_t> bytes) {
  KVSTOW_ASSIGN_OR_RETURN(Opened opened, OpenRecord(bytes, kPageMagic, kPageFlags));
  ByteReader& in = opened.reader;
  PageRecord record;
  record.whole = (opened.flags & kWholeFlag) != 0;
  record.hot = (opened.flags & kHotFlag) != 0;
  record.number = in.Get<uint64_t>();
  record.name.space = in.Get<uint32_t>();
  record.name.key = std::string(in.GetString16());
  const auto digest = in.GetBytes(record.raw_digest.bytes.size());
  std::copy(digest.begin(), digest.end(), record.raw_digest.bytes.begin());
  record.raw_bytes = in.Get<uint64_t>();
  record.first_position = in.Get<uint64_t>();
  record.tokens = in.Get<uint32_t>();
  if ((opened.flags & kParentFlag) != 0) record.parent = in.Get<uint64_t>();
  record.header = SharedBytes::CopyOf(in.GetBytes(in.Get<uint32_t>()));
  const auto segments = in.Get<uint32_t>();
  const bool names_a_page = record.number > 0 && !record.name.key.empty() &&
                            record.name.key.size() <= kMaxStoreKeyBytes &&
                            record.header.size() <= kMaxHeaderBytes;
  if (!in.ok() || !names_a_page || segments == 0 || segments > kMaxPageSegments ||
      in.remaining() != segments * kFactsBytes) {
    return absl::DataLossError("a page record whose lengths contradict each other");
  }
  record.facts.resize(segments);
  for (SegmentFacts& facts : record.facts) {
    facts.bytes = in.Get<uint32_t>();
    facts.gain = in.Get<float>();
    facts.digest = in.Get<uint64_t>();
  }
  return record;
}

absl::StatusOr<SpaceRecord> ParseSpaceRecord(std::span<const uint8_t> bytes) {
  KVSTOW_ASSIGN_OR_RETURN(Opened opened, OpenRecord(bytes, kSpaceMagic, kTenantFlag));
  ByteReader& in = opened.reader;
  SpaceRecord record;
  record.id = in.Get<uint32_t>();
  if ((opened.flags & kTenantFlag) != 0) record.tenant = std::string(in.GetString16());
  record.bytes = SharedBytes::CopyOf(in.GetBytes(in.Get<uint32_t>()));
  if (!in.ok() || in.remaining() != 0) {
    return absl::DataLossError("a space record whose lengths contradict each other");
  }
  return record;
}

std::string PageRecordKey(PageNumber number) { return BigEndian(number, 8); }
std::string SpaceRecordKey(SpaceId id) { return BigEndian(id, 4); }
std::string SegmentKey(SegmentId id) { return BigEndian(id.page, 8) + BigEndian(id.index, 2); }

uint64_t NumberInKey(std::span<const uint8_t> key) {
  if (key.size() != sizeof(PageNumber) && key.size() != sizeof(SpaceId)) return 0;
  uint64_t number = 0;
  for (const uint8_t byte : key) number = number << 8 | byte;
  return number;
}

}  // namespace kvstow
