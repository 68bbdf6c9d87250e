#include "service/spaces/sealed_tables.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "storage/seal/seal.h"

namespace kvstow {
namespace {

// "kvST" as it stands in a file.
constexpr uint32_t kMagic = 0x5453766b;
constexpr absl::string_view kSuffix = ".kvcal";
constexpr size_t kNumberDigits = 16;

// What stands before the sealed bytes.
struct Head {
  TablesPlace place;
  Seal seal;
  size_t bytes = 0;  // of the head itself
};

SealPlace SealPlaceOf(const TablesPlace& place) {
  return {.kind = SealPlace::Kind::kTables, .space = place.space, .page = place.number};
}

std::string Serialize(const TablesPlace& place, const Seal& seal) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kSealedTablesVersion);
  out.Put(uint16_t{0});
  out.Put(place.space);
  out.PutString16(place.tenant);
  PutSeal(out, seal);
  out.Put(Xxh3(AsBytes(out.bytes())));
  return std::move(out).Take();
}

absl::StatusOr<Head> ParseHead(uint64_t number, std::span<const uint8_t> file) {
  if (!IsSealedTables(file)) return absl::DataLossError("sealed tables without their magic");
  ByteReader in(file);
  in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  const auto flags = in.Get<uint16_t>();
  if (in.ok() && (version != kSealedTablesVersion || flags != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("sealed tables of version ", version, " with flags ", flags,
                     " are not known here, only ", kSealedTablesVersion));
  }
  Head out;
  out.place.number = number;
  out.place.space = in.Get<SpaceId>();
  out.place.tenant = std::string(in.GetString16());
  const auto seal = in.GetBytes(kSealBytes);
  out.bytes = file.size() - in.remaining();
  const auto digest = in.Get<uint64_t>();
  if (!in.ok() || digest != Xxh3(file.first(out.bytes))) {
    return absl::DataLossError("sealed tables whose head is damaged");
  }
  out.bytes += sizeof(digest);
  KVSTOW_ASSIGN_OR_RETURN(out.seal, ParseSeal(seal));
  return out;
}

}  // namespace

std::string TablesFileName(uint64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16), kSuffix);
}

absl::StatusOr<uint64_t> TablesNumberOf(absl::string_view file_name) {
  uint64_t number = 0;
  if (absl::ConsumeSuffix(&file_name, kSuffix) && file_name.size() == kNumberDigits &&
      absl::SimpleHexAtoi(file_name, &number)) {
    return number;
  }
  return absl::DataLossError("sealed tables in a file that was renamed");
}

std::string SealTables(const DataKey& key, const TablesPlace& place, std::span<const uint8_t> blob,
                       const AeadNonce& nonce) {
  Sealing sealing(key, place.tenant, SealPlaceOf(place), nonce);
  std::string out = Serialize(place, {});  // as long as with its seal
  const size_t head = out.size();
  out.resize(head + blob.size());
  sealing.Update(blob, reinterpret_cast<uint8_t*>(out.data()) + head);
  out.replace(0, head, Serialize(place, sealing.Finish()));
  return out;
}

bool IsSealedTables(std::span<const uint8_t> file) {
  return ByteReader(file).Get<uint32_t>() == kMagic;
}

absl::StatusOr<TablesPlace> PlaceOfTables(uint64_t number, std::span<const uint8_t> file) {
  KVSTOW_ASSIGN_OR_RETURN(Head head, ParseHead(number, file));
  return std::move(head.place);
}

absl::StatusOr<OpenedTables> OpenTables(DataKeys& keys, uint64_t number, std::string file) {
  KVSTOW_ASSIGN_OR_RETURN(Head head, ParseHead(number, AsBytes(file)));
  KVSTOW_ASSIGN_OR_RETURN(const DataKey key, keys.KeyToOpen(head.place.tenant, head.seal.key));
  Opening opening(key, head.place.tenant, SealPlaceOf(head.place), head.seal);
  // In place: tables are large.
  uint8_t* const blob = reinterpret_cast<uint8_t*>(file.data()) + head.bytes;
  const size_t size = file.size() - head.bytes;
  opening.Update({blob, size}, blob);
  KVSTOW_RETURN_IF_ERROR(opening.Finish());
  return OpenedTables{std::move(head.place),
                      SharedBytes::Take(std::move(file)).Slice(head.bytes, size)};
}

}  // namespace kvstow
