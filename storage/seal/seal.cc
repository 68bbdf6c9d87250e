#include "storage/seal/seal.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace kvstow {
namespace {

class NoKeys final : public DataKeys {
 public:
  bool seals() const override { return false; }
  bool reads_clear() const override { return true; }
  absl::StatusOr<DataKey> KeyToSeal(absl::string_view) override { return None(); }
  absl::StatusOr<DataKey> KeyToOpen(absl::string_view, uint32_t) override { return None(); }

 private:
  static absl::Status None() {
    return absl::UnavailableError("there is no master key here: start kvstowd with --master-key");
  }
};

}  // namespace

std::shared_ptr<DataKeys> NoDataKeys() {
  static const auto* const kNone = new std::shared_ptr<DataKeys>(std::make_shared<NoKeys>());
  return *kNone;
}

void PutSeal(ByteWriter& out, const Seal& seal) {
  out.Put(kSealVersion);
  out.Put(uint16_t{0});
  out.Put(seal.key);
  out.PutBytes(seal.nonce);
  out.PutBytes(seal.tag);
}

absl::StatusOr<Seal> ParseSeal(std::span<const uint8_t> bytes) {
  if (bytes.size() != kSealBytes) return absl::DataLossError("a seal is cut short");
  ByteReader in(bytes);
  const auto version = in.Get<uint16_t>();
  const auto flags = in.Get<uint16_t>();
  if (version != kSealVersion || flags != 0) {
    return absl::FailedPreconditionError(absl::StrCat("seal version ", version, " with flags ",
                                                      flags, " is not known here, only ",
                                                      kSealVersion));
  }
  Seal seal;
  seal.key = in.Get<uint32_t>();
  const auto nonce = in.GetBytes(seal.nonce.size());
  const auto tag = in.GetBytes(seal.tag.size());
  std::copy(nonce.begin(), nonce.end(), seal.nonce.begin());
  std::copy(tag.begin(), tag.end(), seal.tag.begin());
  if (seal.key == 0) return absl::DataLossError("a seal without a key");
  return seal;
}

std::string BoundBytes(absl::string_view tenant, const SealPlace& place) {
  ByteWriter out;
  out.PutBytes(AsBytes("kvstow seal 1"));
  out.Put(static_cast<uint8_t>(place.kind));
  out.Put(place.space);
  out.Put(place.page);
  out.Put(place.index);
  out.Put(place.digest);
  out.PutBytes(AsBytes(tenant));
  return std::move(out).Take();
}

Sealing::Sealing(const DataKey& key, absl::string_view tenant, const SealPlace& place,
                 const AeadNonce& nonce)
    : seal_{.key = key.id, .nonce = nonce},
      message_(AeadMessage::ToSeal(*key.secret, nonce, AsBytes(BoundBytes(tenant, place)))) {}

Seal Sealing::Finish() {
  seal_.tag = message_.Tag();
  return seal_;
}

Opening::Opening(const DataKey& key, absl::string_view tenant, const SealPlace& place,
                 const Seal& seal)
    : tag_(seal.tag),
      message_(AeadMessage::ToOpen(*key.secret, seal.nonce, AsBytes(BoundBytes(tenant, place)))) {}

absl::Status Opening::Finish() {
  if (message_.Opens(tag_)) return absl::OkStatus();
  return absl::DataLossError("a sealed value is not what was sealed for its place");
}

SealedValue SealWhole(Sealing sealing, std::span<const uint8_t> value) {
  SealedValue out;
  out.bytes.resize(value.size());
  sealing.Update(value, reinterpret_cast<uint8_t*>(out.bytes.data()));
  out.seal = sealing.Finish();
  return out;
}

absl::StatusOr<std::string> OpenWhole(Opening opening, std::span<const uint8_t> sealed) {
  std::string out(sealed.size(), '\0');
  opening.Update(sealed, reinterpret_cast<uint8_t*>(out.data()));
  if (absl::Status s = opening.Finish(); !s.ok()) return s;
  return out;
}

}  // namespace kvstow
