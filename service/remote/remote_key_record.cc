#include "service/remote/remote_key_record.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "service/remote/remote_frame.h"

namespace kvstow {
namespace {

std::string BoundTo(uint64_t id, absl::string_view tenant) {
  ByteWriter out;
  out.PutBytes(AsBytes("kvstow remote key 1"));
  out.Put(id);
  out.PutBytes(AsBytes(tenant));
  return std::move(out).Take();
}

}  // namespace

KeyRecord Wrap(const MasterKey& master, absl::string_view tenant, const RemoteKey& key,
               const AeadNonce& nonce) {
  KeyRecord out{.id = key.id(), .master = master.id, .nonce = nonce};
  AeadMessage message =
      AeadMessage::ToSeal(*master.secret, nonce, AsBytes(BoundTo(out.id, tenant)));
  message.Update(key.secret().bytes(), out.secret.data());
  out.tag = message.Tag();
  return out;
}

absl::StatusOr<RemoteKeyPtr> Unwrap(std::span<const MasterKey> masters, absl::string_view tenant,
                                    const KeyRecord& record) {
  const auto master = std::ranges::find(masters, record.master, &MasterKey::id);
  if (master == masters.end()) {
    return absl::UnavailableError("no master key here unwraps the key in the remote store");
  }
  AeadMessage message =
      AeadMessage::ToOpen(*master->secret, record.nonce, AsBytes(BoundTo(record.id, tenant)));
  std::array<uint8_t, kAeadKeyBytes> bytes;
  message.Update(record.secret, bytes.data());
  const bool opens = message.Opens(record.tag);
  SecretKey secret(bytes);
  Cleanse(bytes);
  if (!opens) return absl::DataLossError("the key in the remote store is damaged");
  return std::make_shared<const RemoteKey>(record.id, std::move(secret));
}

std::vector<SharedBytes> KeyRecordValue(absl::string_view tenant, const KeyRecord& record) {
  ByteWriter out;
  out.Put(record.id);
  out.Put(record.master);
  out.PutBytes(record.nonce);
  out.PutBytes(record.tag);
  out.PutBytes(record.secret);
  return FramedValue({KeyTagOf(tenant), nullptr}, RemoteKind::kKey, 0,
                     Digested(SharedBytes::Take(std::move(out).Take())));
}

absl::StatusOr<KeyRecord> ParseKeyRecord(absl::string_view tenant, const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(const FramedBody framed,
                          OpenFramed({KeyTagOf(tenant), nullptr}, RemoteKind::kKey, 0, value));
  ByteReader in(framed.body.span());
  KeyRecord out;
  out.id = in.Get<uint64_t>();
  out.master = in.Get<uint64_t>();
  const auto nonce = in.GetBytes(out.nonce.size());
  const auto tag = in.GetBytes(out.tag.size());
  const auto secret = in.GetBytes(out.secret.size());
  if (!in.ok() || in.remaining() != 0) {
    return absl::DataLossError("a key record has another length");
  }
  std::ranges::copy(nonce, out.nonce.begin());
  std::ranges::copy(tag, out.tag.begin());
  std::ranges::copy(secret, out.secret.begin());
  return out;
}

}  // namespace kvstow
