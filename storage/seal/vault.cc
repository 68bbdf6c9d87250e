#include "storage/seal/vault.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// "kvSR" as it stands in a file.
constexpr uint32_t kSealedMagic = 0x5253766b;
constexpr uint16_t kSealedVersion = 1;
constexpr uint16_t kWholeFlag = 1;  // of a page that must not lose a part

// A sealed record as it lies: what is in clear of it, and the sealed bytes of the record.
struct Envelope {
  bool whole = false;
  SealPlace place;        // a space or a page
  uint32_t segments = 0;  // of a page: the leading ones that are left
  std::string tenant;     // of a space
  Seal seal;
  std::span<const uint8_t> sealed;
};

std::string Serialize(const Envelope& envelope) {
  ByteWriter out;
  out.Put(kSealedMagic);
  out.Put(kSealedVersion);
  out.Put(envelope.whole ? kWholeFlag : uint16_t{0});
  out.Put(static_cast<uint32_t>(envelope.place.kind));
  out.Put(envelope.place.space);
  out.Put(envelope.place.page);
  out.Put(envelope.segments);
  out.PutString16(envelope.tenant);
  PutSeal(out, envelope.seal);
  out.Put(static_cast<uint32_t>(envelope.sealed.size()));
  out.PutBytes(envelope.sealed);
  out.Put(Xxh3(AsBytes(out.bytes())));
  return std::move(out).Take();
}

absl::StatusOr<Envelope> ParseEnvelope(std::span<const uint8_t> bytes, SealPlace::Kind kind) {
  constexpr size_t kDigest = sizeof(uint64_t);
  if (bytes.size() < kDigest || !IsSealedRecord(bytes)) {
    return absl::DataLossError("a sealed record without its magic");
  }
  ByteReader digest(bytes.last(kDigest));
  bytes = bytes.first(bytes.size() - kDigest);
  if (digest.Get<uint64_t>() != Xxh3(bytes)) {
    return absl::DataLossError("a sealed record that fails its digest");
  }
  ByteReader in(bytes);
  in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  const auto flags = in.Get<uint16_t>();
  if (version != kSealedVersion || (flags & ~kWholeFlag) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("sealed record version ", version,
                                                      " with flags ", flags,
                                                      " is not known here, only ", kSealedVersion));
  }
  Envelope out;
  out.whole = (flags & kWholeFlag) != 0;
  bool right_kind = in.Get<uint32_t>() == static_cast<uint32_t>(kind);
  out.place.kind = kind;
  out.place.space = in.Get<uint32_t>();
  out.place.page = in.Get<uint64_t>();
  out.segments = in.Get<uint32_t>();
  out.tenant = std::string(in.GetString16());
  // Each kind leaves the other's fields empty.
  const bool no_page = out.place.page == 0 && out.segments == 0 && !out.whole;
  right_kind &= kind == SealPlace::Kind::kPage ? out.tenant.empty() : no_page;
  KVSTOW_ASSIGN_OR_RETURN(out.seal, ParseSeal(in.GetBytes(kSealBytes)));
  out.sealed = in.GetBytes(in.Get<uint32_t>());
  if (!in.ok() || in.remaining() != 0 || !right_kind) {
    return absl::DataLossError("a sealed record whose lengths contradict each other");
  }
  return out;
}

}  // namespace

bool IsSealedRecord(std::span<const uint8_t> bytes) {
  return ByteReader(bytes).Get<uint32_t>() == kSealedMagic;
}

void Vault::SetTenant(SpaceId space, std::string tenant) {
  MutexLock lock(mu_);
  if (tenant.empty()) {
    tenants_.erase(space);
  } else {
    tenants_[space] = std::move(tenant);
  }
}

void Vault::ForgetSpace(SpaceId space) { SetTenant(space, ""); }

std::string Vault::TenantOf(SpaceId space) {
  MutexLock lock(mu_);
  const auto it = tenants_.find(space);
  return it == tenants_.end() ? "" : it->second;
}

absl::Status Vault::MayBeClear() const {
  if (!keys_->seals() || keys_->reads_clear()) return absl::OkStatus();
  return absl::DataLossError("a value in clear, where all values were sealed");
}

absl::StatusOr<std::optional<Sealing>> Vault::Seal(const SealPlace& place) {
  if (!keys_->seals()) return std::nullopt;
  const std::string tenant = TenantOf(place.space);
  KVSTOW_ASSIGN_OR_RETURN(const DataKey key, keys_->KeyToSeal(tenant));
  return std::optional<Sealing>(std::in_place, key, tenant, place, new_nonce_());
}

absl::StatusOr<Opening> Vault::Open(const SealPlace& place, const kvstow::Seal& seal) {
  const std::string tenant = TenantOf(place.space);
  KVSTOW_ASSIGN_OR_RETURN(const DataKey key, keys_->KeyToOpen(tenant, seal.key));
  return Opening(key, tenant, place, seal);
}

absl::StatusOr<std::string> Vault::Serialize(const PageRecord& record) {
  std::string clear = SerializePageRecord(record);
  Envelope envelope{
      .whole = record.whole,
      .place = {.kind = SealPlace::Kind::kPage, .space = record.name.space, .page = record.number},
      .segments = static_cast<uint32_t>(record.facts.size())};
  KVSTOW_ASSIGN_OR_RETURN(std::optional<Sealing> sealing, Seal(envelope.place));
  if (!sealing.has_value()) return clear;
  const SealedValue value = SealWhole(*std::move(sealing), AsBytes(clear));
  envelope.seal = value.seal;
  envelope.sealed = AsBytes(value.bytes);
  return kvstow::Serialize(envelope);
}

absl::StatusOr<std::string> Vault::Serialize(const SpaceRecord& record) {
  SetTenant(record.id, record.tenant);
  std::string clear = SerializeSpaceRecord(record);
  Envelope envelope{.place = {.kind = SealPlace::Kind::kSpace, .space = record.id},
                    .tenant = record.tenant};
  KVSTOW_ASSIGN_OR_RETURN(std::optional<Sealing> sealing, Seal(envelope.place));
  if (!sealing.has_value()) return clear;
  const SealedValue value = SealWhole(*std::move(sealing), AsBytes(clear));
  envelope.seal = value.seal;
  envelope.sealed = AsBytes(value.bytes);
  return kvstow::Serialize(envelope);
}

absl::StatusOr<PageRecord> Vault::ParsePage(std::span<const uint8_t> bytes) {
  if (!IsSealedRecord(bytes)) {
    KVSTOW_RETURN_IF_ERROR(MayBeClear());
    return ParsePageRecord(bytes);
  }
  KVSTOW_ASSIGN_OR_RETURN(const Envelope envelope, ParseEnvelope(bytes, SealPlace::Kind::kPage));
  KVSTOW_ASSIGN_OR_RETURN(Opening opening, Open(envelope.place, envelope.seal));
  KVSTOW_ASSIGN_OR_RETURN(const std::string clear, OpenWhole(std::move(opening), envelope.sealed));
  KVSTOW_ASSIGN_OR_RETURN(PageRecord record, ParsePageRecord(AsBytes(clear)));
  const bool same = record.number == envelope.place.page &&
                    record.name.space == envelope.place.space && record.whole == envelope.whole &&
                    envelope.segments > 0 &&
                    (record.whole ? envelope.segments == record.facts.size()
                                  : envelope.segments <= record.facts.size());
  if (!same) return absl::DataLossError("a sealed record that contradicts what is in clear of it");
  record.facts.resize(envelope.segments);
  return record;
}

absl::StatusOr<SpaceRecord> Vault::ParseSpace(std::span<const uint8_t> bytes) {
  if (!IsSealedRecord(bytes)) {
    KVSTOW_RETURN_IF_ERROR(MayBeClear());
    KVSTOW_ASSIGN_OR_RETURN(SpaceRecord record, ParseSpaceRecord(bytes));
    SetTenant(record.id, record.tenant);
    return record;
  }
  KVSTOW_ASSIGN_OR_RETURN(const Envelope envelope, ParseEnvelope(bytes, SealPlace::Kind::kSpace));
  SetTenant(envelope.place.space, envelope.tenant);
  KVSTOW_ASSIGN_OR_RETURN(Opening opening, Open(envelope.place, envelope.seal));
  KVSTOW_ASSIGN_OR_RETURN(const std::string clear, OpenWhole(std::move(opening), envelope.sealed));
  KVSTOW_ASSIGN_OR_RETURN(SpaceRecord record, ParseSpaceRecord(AsBytes(clear)));
  if (record.id == envelope.place.space && record.tenant == envelope.tenant) return record;
  return absl::DataLossError("a sealed record that contradicts what is in clear of it");
}

absl::StatusOr<TruncatedRecord> TruncatePageRecord(std::span<const uint8_t> bytes, size_t keep) {
  TruncatedRecord out;
  bool whole = false;
  if (IsSealedRecord(bytes)) {
    KVSTOW_ASSIGN_OR_RETURN(Envelope envelope, ParseEnvelope(bytes, SealPlace::Kind::kPage));
    out.segments = envelope.segments;
    whole = envelope.whole;
    envelope.segments = static_cast<uint32_t>(std::min<size_t>(keep, envelope.segments));
    out.bytes = Serialize(envelope);
  } else {
    KVSTOW_ASSIGN_OR_RETURN(PageRecord record, ParsePageRecord(bytes));
    out.segments = record.facts.size();
    whole = record.whole;
    record.facts.resize(std::min(keep, out.segments));
    out.bytes = SerializePageRecord(record);
  }
  if (keep == 0 || (whole && keep < out.segments)) out.bytes.clear();
  return out;
}

}  // namespace kvstow
