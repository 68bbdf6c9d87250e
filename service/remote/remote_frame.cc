#include "service/remote/remote_frame.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"

namespace kvstow {
namespace {

constexpr uint32_t kMagic = 0x5652766b;  // "kvRV" as it stands in a value
constexpr uint8_t kSealedFlag = 1;
constexpr size_t kHeadBytes = 16;                  // what all frames begin with
constexpr size_t kClearBytes = kHeadBytes + 16;    // then two digests
constexpr size_t kDigestBytes = sizeof(uint64_t);  // in front of a body, encrypted with it
constexpr size_t kSealBytes = sizeof(AeadNonce) + sizeof(AeadTag);
constexpr size_t kSealedBytes = kHeadBytes + kSealBytes + kDigestBytes;

// The place of a value, as its digest or its tag covers it.
void PutPlace(ByteWriter& out, const RemotePlace& place, RemoteKind kind, size_t index) {
  out.PutBytes(place.tag.bytes);
  out.Put(static_cast<uint8_t>(kind));
  out.Put(static_cast<uint16_t>(index));
}

uint64_t BoundDigest(const RemotePlace& place, RemoteKind kind, size_t index, uint64_t digest) {
  ByteWriter out;
  PutPlace(out, place, kind, index);
  out.Put(digest);
  return Xxh3(AsBytes(out.bytes()));
}

std::string BoundBytes(const RemotePlace& place, RemoteKind kind, size_t index) {
  ByteWriter out;
  out.PutBytes(AsBytes("kvstow remote seal 1"));
  PutPlace(out, place, kind, index);
  return std::move(out).Take();
}

ByteWriter Head(RemoteKind kind, uint8_t flags, uint64_t bytes) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kRemoteVersion);
  out.Put(static_cast<uint8_t>(kind));
  out.Put(flags);
  out.Put(bytes);
  return out;
}

SharedBytes Sealed(const RemotePlace& place, RemoteKind kind, size_t index, const FramedBody& body,
                   const AeadNonce& nonce) {
  const size_t size = body.body.size();
  ByteBlock out(kSealedBytes + size);
  const std::string head = std::move(Head(kind, kSealedFlag, size)).Take();
  uint8_t* at = std::copy_n(AsBytes(head).begin(), head.size(), out.data());
  at = std::copy(nonce.begin(), nonce.end(), at);
  AeadMessage message =
      AeadMessage::ToSeal(place.key->secret(), nonce, AsBytes(BoundBytes(place, kind, index)));
  uint8_t* const text = at + sizeof(AeadTag);
  message.Update({reinterpret_cast<const uint8_t*>(&body.digest), kDigestBytes}, text);
  message.Update(body.body.span(), text + kDigestBytes);
  const AeadTag tag = message.Tag();
  std::copy(tag.begin(), tag.end(), at);
  return std::move(out).Share();
}

absl::StatusOr<FramedBody> OpenSealed(const RemotePlace& place, RemoteKind kind, size_t index,
                                      uint64_t bytes, std::span<const uint8_t> rest) {
  if (rest.size() < kSealBytes + kDigestBytes || bytes != rest.size() - kSealBytes - kDigestBytes) {
    return absl::DataLossError("a sealed remote value has another length than it says");
  }
  AeadNonce nonce;
  AeadTag tag;
  std::copy_n(rest.begin(), nonce.size(), nonce.begin());
  std::copy_n(rest.begin() + nonce.size(), tag.size(), tag.begin());
  AeadMessage message =
      AeadMessage::ToOpen(place.key->secret(), nonce, AsBytes(BoundBytes(place, kind, index)));
  FramedBody out;
  ByteBlock body(bytes);
  message.Update(rest.subspan(kSealBytes, kDigestBytes), reinterpret_cast<uint8_t*>(&out.digest));
  message.Update(rest.subspan(kSealBytes + kDigestBytes), body.data());
  if (!message.Opens(tag)) {
    return absl::DataLossError("a remote value is not what was sealed for its place");
  }
  out.body = std::move(body).Share();
  return out;
}

absl::StatusOr<FramedBody> OpenClear(const RemotePlace& place, RemoteKind kind, size_t index,
                                     uint64_t bytes, const SharedBytes& value) {
  ByteReader in(value.span());
  in.GetBytes(kHeadBytes);
  const auto digest = in.Get<uint64_t>();
  if (in.Get<uint64_t>() != BoundDigest(place, kind, index, digest) || !in.ok()) {
    return absl::DataLossError("a remote value belongs elsewhere");
  }
  if (bytes != in.remaining()) {
    return absl::DataLossError("a remote value has another length than it says");
  }
  FramedBody out{.body = value.Slice(kClearBytes, bytes), .digest = digest};
  if (Xxh3(out.body.span()) != digest) {
    return absl::DataLossError("a remote value fails its digest");
  }
  return out;
}

}  // namespace

FramedBody Digested(SharedBytes body) {
  const uint64_t digest = Xxh3(body.span());
  return {.body = std::move(body), .digest = digest};
}

std::vector<SharedBytes> FramedValue(const RemotePlace& place, RemoteKind kind, size_t index,
                                     const FramedBody& body, const AeadNonce& nonce) {
  if (place.key != nullptr) return {Sealed(place, kind, index, body, nonce)};
  ByteWriter frame = Head(kind, 0, body.body.size());
  frame.Put(body.digest);
  frame.Put(BoundDigest(place, kind, index, body.digest));
  return {SharedBytes::Take(std::move(frame).Take()), body.body};
}

absl::StatusOr<FramedBody> OpenFramed(const RemotePlace& place, RemoteKind kind, size_t index,
                                      const SharedBytes& value) {
  ByteReader in(value.span());
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  const auto of_kind = in.Get<uint8_t>();
  const auto flags = in.Get<uint8_t>();
  const auto bytes = in.Get<uint64_t>();
  if (!in.ok()) return absl::DataLossError("a remote value is cut short");
  if (magic != kMagic) return absl::DataLossError("a remote value has no magic");
  if (version != kRemoteVersion || (flags & ~kSealedFlag) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("remote value version ", version,
                                                      " with flags ", flags,
                                                      " is not known here, only ", kRemoteVersion));
  }
  if (of_kind != static_cast<uint8_t>(kind)) {
    return absl::DataLossError("a remote value belongs elsewhere");
  }
  const bool sealed = flags == kSealedFlag;
  if (sealed && place.key == nullptr) {
    return absl::FailedPreconditionError("a remote value is sealed: this place is in clear");
  }
  if (!sealed && place.key != nullptr) {
    return absl::DataLossError("a remote value is in clear, and its place is sealed");
  }
  if (!sealed) return OpenClear(place, kind, index, bytes, value);
  return OpenSealed(place, kind, index, bytes, value.span().subspan(kHeadBytes));
}

}  // namespace kvstow
