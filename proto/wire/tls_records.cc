#include "proto/wire/tls_records.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"
#include "base/aes_gcm.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr uint8_t kAlert = 21, kHandshake = 22, kData = 23;  // types of records
constexpr uint8_t kNewSessionTicket = 4, kKeyUpdate = 24;    // types of messages
constexpr size_t kMessageHeadBytes = 4;
constexpr size_t kMostMessageBytes = 128 << 10;
constexpr int kMostWithoutPayload = 32;
constexpr size_t kTagBytes = sizeof(GcmTag);
// OpenSSL codes 96 bytes at a time. Few enough lines for the processor to wait for at once.
constexpr size_t kPieceBytes = 16 * 96;
constexpr size_t kLineBytes = 64;

void Must(bool done) {
  if (!done) std::abort();
}

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tls: ", what));
}

void WriteHead(size_t inner_bytes, uint8_t* out) {
  const size_t size = inner_bytes + kTagBytes;
  out[0] = kData;
  out[1] = out[2] = 3;
  out[3] = static_cast<uint8_t>(size >> 8);
  out[4] = static_cast<uint8_t>(size);
}

// HKDF-Expand-Label of RFC 8446, section 7.1, without a context, for at most one digest.
void Derive(const EVP_MD* hash, std::span<const uint8_t> secret, absl::string_view label,
            std::span<uint8_t> out) {
  std::array<uint8_t, 32> info = {};
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest = {};
  uint8_t* at = info.data();
  *at++ = 0;
  *at++ = static_cast<uint8_t>(out.size());
  *at++ = static_cast<uint8_t>(6 + label.size());
  at = std::ranges::copy(absl::string_view("tls13 "), at).out;
  at = std::ranges::copy(label, at).out;
  *at++ = 0;  // the context's size
  *at++ = 1;  // the first digest
  unsigned bytes = 0;
  Must(HMAC(hash, secret.data(), static_cast<int>(secret.size()), info.data(),
            static_cast<size_t>(at - info.data()), digest.data(), &bytes) != nullptr &&
       bytes >= out.size());
  std::copy_n(digest.begin(), out.size(), out.begin());
  Cleanse(digest);
}

}  // namespace

// The keys of what one side sends, and how many records they coded.
class TlsRecords::Direction {
 public:
  Direction(AesGcm::Use use, size_t key_bytes, const EVP_MD* hash, std::span<const uint8_t> secret)
      : use_(use), key_bytes_(key_bytes), hash_(hash), secret_(secret.begin(), secret.end()) {
    UseSecret();
  }
  ~Direction() {
    Cleanse(secret_);
    Cleanse(iv_);
  }
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;

  // Goes on with the next key.
  void Update() {
    std::vector<uint8_t> next(secret_.size());
    Derive(hash_, secret_, "traffic upd", next);
    secret_.swap(next);
    Cleanse(next);
    UseSecret();
  }
  uint64_t records() const { return records_; }

  // Returns the size of the record that it made.
  size_t Seal(uint8_t type, std::span<const uint8_t> bytes, uint8_t* out) {
    WriteHead(bytes.size() + 1, out);
    Begin(out);
    uint8_t* at = out + kHeadBytes;
    at = Code(bytes, at);
    at = Code({&type, 1}, at);
    std::ranges::copy(cipher_->Tag(), at);
    return bytes.size() + kOverhead;
  }

  // Writes all but the last byte of what the record holds to `out`, and that to `last`. Returns
  // whether they are what was sealed.
  bool Open(std::span<uint8_t> record, uint8_t* out, uint8_t& last) {
    Begin(record.data());
    const auto coded = record.subspan(kHeadBytes, record.size() - kHeadBytes - kTagBytes);
    Code(coded.first(coded.size() - 1), out);
    Code(coded.last(1), &last);
    GcmTag tag;
    std::ranges::copy(record.last(kTagBytes), tag.begin());
    return cipher_->Opens(tag);
  }

 private:
  void UseSecret() {
    std::array<uint8_t, EVP_MAX_KEY_LENGTH> key = {};
    const auto used = std::span(key).first(key_bytes_);
    Derive(hash_, secret_, "key", used);
    Derive(hash_, secret_, "iv", iv_);
    cipher_ = AesGcm::Make(use_, used);
    Cleanse(key);
    records_ = 0;
  }

  // A nonce is used once: the number of the record is in it.
  void Begin(const uint8_t* head) {
    GcmNonce nonce = iv_;
    for (size_t i = 0; i < 8; ++i) nonce[11 - i] ^= static_cast<uint8_t>(records_ >> (8 * i));
    ++records_;
    cipher_->Begin(nonce, {head, kHeadBytes});
  }

  // The side that is the caller's memory is out of the cache as a rule, and the cipher's loop is
  // too long for the processor to look ahead of it: so each piece is called for while the piece
  // before it is coded.
  uint8_t* Code(std::span<const uint8_t> bytes, uint8_t* out) {
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      bytes = bytes.subspan(piece.size());
      CallFor(seals() ? bytes.data() : out + piece.size(), std::min(bytes.size(), kPieceBytes));
      cipher_->Update(piece, out);
      out += piece.size();
    }
    return out;
  }
  void CallFor(const uint8_t* bytes, size_t size) const {
    for (size_t i = 0; i < size; i += kLineBytes) {
      if (seals()) {
        __builtin_prefetch(bytes + i, 0);
      } else {
        __builtin_prefetch(bytes + i, 1);
      }
    }
  }
  bool seals() const { return use_ == AesGcm::Use::kSeal; }

  const AesGcm::Use use_;
  const size_t key_bytes_;
  const EVP_MD* const hash_;
  std::vector<uint8_t> secret_;
  std::unique_ptr<AesGcm> cipher_;
  GcmNonce iv_ = {};
  uint64_t records_ = 0;  // of this key
};

std::unique_ptr<TlsRecords> TlsRecords::Make(Side side, uint16_t suite,
                                             std::span<const uint8_t> client_secret,
                                             std::span<const uint8_t> server_secret,
                                             uint64_t records_of_a_key) {
  const bool small = suite == (TLS1_3_CK_AES_128_GCM_SHA256 & 0xffff);
  if (!small && suite != (TLS1_3_CK_AES_256_GCM_SHA384 & 0xffff)) return nullptr;
  const size_t key_bytes = small ? 16 : 32;
  const EVP_MD* const hash = small ? EVP_sha256() : EVP_sha384();
  const auto bytes = static_cast<size_t>(EVP_MD_get_size(hash));
  if (client_secret.size() != bytes || server_secret.size() != bytes) return nullptr;
  const bool client = side == Side::kClient;
  return std::unique_ptr<TlsRecords>(
      new TlsRecords(side,
                     std::make_unique<Direction>(AesGcm::Use::kOpen, key_bytes, hash,
                                                 client ? server_secret : client_secret),
                     std::make_unique<Direction>(AesGcm::Use::kSeal, key_bytes, hash,
                                                 client ? client_secret : server_secret),
                     records_of_a_key));
}

TlsRecords::TlsRecords(Side side, std::unique_ptr<Direction> reads,
                       std::unique_ptr<Direction> writes, uint64_t records_of_a_key)
    : side_(side),
      reads_(std::move(reads)),
      writes_(std::move(writes)),
      records_of_a_key_(records_of_a_key) {}

TlsRecords::~TlsRecords() = default;

// The KeyUpdate is the last record of its key.
size_t TlsRecords::UpdateIfDue(uint8_t* out) {
  if (!update_due_ && writes_->records() + 1 < records_of_a_key_) return 0;
  update_due_ = false;
  constexpr std::array<uint8_t, 5> kMessage = {kKeyUpdate, 0, 0, 1, 0};  // it asks for none
  const size_t bytes = writes_->Seal(kHandshake, kMessage, out);
  writes_->Update();
  return bytes;
}

TlsRecords::Sealed TlsRecords::Seal(std::span<const uint8_t> bytes, uint8_t* out) {
  const auto taken = bytes.first(std::min(bytes.size(), kMostPayload));
  const size_t before = UpdateIfDue(out);
  return {.taken = taken.size(), .written = before + writes_->Seal(kData, taken, out + before)};
}

size_t TlsRecords::SealEnd(uint8_t* out) {
  constexpr std::array<uint8_t, 2> kCloseNotify = {1, SSL3_AD_CLOSE_NOTIFY};
  const size_t before = UpdateIfDue(out);
  return before + writes_->Seal(kAlert, kCloseNotify, out + before);
}

absl::StatusOr<size_t> TlsRecords::SizeOf(std::span<const uint8_t> begin) {
  if (begin.size() < kHeadBytes) return 0;
  if (begin[0] != kData || begin[1] != 3 || begin[2] != 3) {
    return Broken("what came is no record of TLS 1.3");
  }
  const size_t size = kHeadBytes + (size_t{begin[3]} << 8 | begin[4]);
  if (size < kOverhead) return Broken("a record is too short to be sealed");
  if (size > kMostRecord) return Broken("a record is too long");
  return size;
}

absl::StatusOr<std::span<const uint8_t>> TlsRecords::Open(std::span<uint8_t> record,
                                                          std::span<uint8_t> room) {
  size_t size = record.size() - kOverhead;
  const auto out = room.size() >= size ? room.first(size) : record.subspan(kHeadBytes, size);
  uint8_t type = 0;
  if (!reads_->Open(record, out.data(), type)) {
    Cleanse(out);
    return Broken("a record was changed on its way");
  }
  while (type == 0 && size > 0) type = out[--size];  // padding is zeros behind the type
  const auto content = out.first(size);
  if (type == kData && handshake_.empty() && size > 0) {
    without_payload_ = 0;
    return content;
  }
  const absl::Status status = TakeOther(type, content);
  Cleanse(out);
  if (!status.ok()) return status;
  return std::span<const uint8_t>();
}

// Takes a record that is no payload. It may break the rules.
absl::Status TlsRecords::TakeOther(uint8_t type, std::span<const uint8_t> content) {
  if (++without_payload_ > kMostWithoutPayload) return Broken("too many records without payload");
  if (type == kHandshake) return TakeHandshake(content);
  if (!handshake_.empty()) return Broken("a message is interrupted");
  if (type == kAlert) return TakeAlert(content);
  if (type == kData) return absl::OkStatus();
  return Broken(absl::StrCat("a record of type ", type));
}

absl::Status TlsRecords::TakeAlert(std::span<const uint8_t> bytes) const {
  if (bytes.size() != 2) return Broken("an alert of another size");
  const uint8_t kind = bytes[1];
  if (kind == SSL3_AD_CLOSE_NOTIFY) return absl::UnavailableError("tls: the peer hung up");
  if (kind == TLS1_AD_USER_CANCELLED) return absl::OkStatus();  // a close_notify follows
  const char* const reason =
      ERR_reason_error_string(ERR_PACK(ERR_LIB_SSL, 0, SSL_AD_REASON_OFFSET + kind));
  if (reason != nullptr) return absl::UnauthenticatedError(absl::StrCat("tls: ", reason));
  return absl::UnauthenticatedError(absl::StrCat("tls: alert ", kind));
}

// A record holds messages, and beginnings and ends of messages.
absl::Status TlsRecords::TakeHandshake(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return Broken("an empty part of a message");
  handshake_.insert(handshake_.end(), bytes.begin(), bytes.end());
  std::span<const uint8_t> left = handshake_;
  while (left.size() >= kMessageHeadBytes) {
    const size_t size =
        kMessageHeadBytes + (size_t{left[1]} << 16 | size_t{left[2]} << 8 | left[3]);
    if (size > kMostMessageBytes) return Broken("a message is too long");
    if (left.size() < size) break;
    KVSTOW_RETURN_IF_ERROR(
        TakeMessage(left[0], left.first(size).subspan(kMessageHeadBytes), left.size() == size));
    left = left.subspan(size);
  }
  handshake_.erase(handshake_.begin(), handshake_.end() - static_cast<std::ptrdiff_t>(left.size()));
  return absl::OkStatus();
}

absl::Status TlsRecords::TakeMessage(uint8_t type, std::span<const uint8_t> body, bool last) {
  if (type == kNewSessionTicket && side_ == Side::kClient) return absl::OkStatus();
  if (type != kKeyUpdate) return Broken(absl::StrCat("a message of type ", type));
  // What follows it has another key, so it ends its record.
  if (body.size() != 1 || body[0] > 1 || !last) return Broken("a KeyUpdate breaks the rules");
  if (body[0] == 1) update_due_ = true;
  reads_->Update();
  return absl::OkStatus();
}

}  // namespace kvstow
