// The records of TLS 1.3 after the handshake (RFC 8446, section 5), over the secrets that the
// handshake made: from the caller's bytes into a record without a copy, and back.
//
// OpenSSL does this too, with a copy on each side. The handshake stays with OpenSSL. This class
// takes AES-GCM alone, by base/aes_gcm.h.
//
// Messages of the peer's between the records are dealt with here. A KeyUpdate changes the key, and
// is answered before the next record that Seal makes; tickets are left unread. A key codes
// kRecordsOfAKey records at most: Seal sends a KeyUpdate before there are more. So no nonce is used
// twice.
//
// Errors of Open: UNAVAILABLE when the peer says that nothing follows, UNAUTHENTICATED when it says
// that something is wrong (an alert), INVALID_ARGUMENT when a record breaks the rules or was
// changed. After an error the connection is good for nothing. What fails to authenticate is wiped
// from the caller's memory, and so is what is no payload. A failure of OpenSSL itself ends the
// process. One thread at a time uses an object.
#ifndef KVSTOW_PROTO_WIRE_TLS_RECORDS_H_
#define KVSTOW_PROTO_WIRE_TLS_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstow {

class TlsRecords {
 public:
  enum class Side : uint8_t { kClient, kServer };
  static constexpr size_t kHeadBytes = 5;
  static constexpr size_t kMostPayload = 16 << 10;
  static constexpr size_t kOverhead = kHeadBytes + 1 + 16;  // head, type and tag
  static constexpr size_t kMostRecord = kMostPayload + kOverhead;
  static constexpr size_t kUpdateBytes = 5 + kOverhead;  // a KeyUpdate
  // What Seal writes at most for so many bytes, and what SealEnd does.
  static constexpr size_t MostSealed(size_t bytes) {
    return kUpdateBytes + kOverhead + (bytes < kMostPayload ? bytes : kMostPayload);
  }
  static constexpr size_t kMostEnd = kUpdateBytes + 2 + kOverhead;
  // RFC 8446, section 5.5: 2^24.5 full records keep a margin of 2^-57.
  static constexpr uint64_t kRecordsOfAKey = uint64_t{1} << 24;

  // The secrets of what the client and of what the server sends. Returns null for another suite
  // than TLS_AES_128_GCM_SHA256 and TLS_AES_256_GCM_SHA384, and for secrets that do not fit it.
  static std::unique_ptr<TlsRecords> Make(Side side, uint16_t suite,
                                          std::span<const uint8_t> client_secret,
                                          std::span<const uint8_t> server_secret,
                                          uint64_t records_of_a_key = kRecordsOfAKey);
  ~TlsRecords();
  TlsRecords(const TlsRecords&) = delete;
  TlsRecords& operator=(const TlsRecords&) = delete;

  struct Sealed {
    size_t taken = 0;    // of the bytes
    size_t written = 0;  // at `out`
  };
  // Writes the first bytes, kMostPayload at most, as a record to `out`.
  Sealed Seal(std::span<const uint8_t> bytes, uint8_t* out);
  // Writes that nothing follows. Returns its size.
  size_t SealEnd(uint8_t* out);

  // Returns the size of the record that begins so; 0 = there is less than a head.
  static absl::StatusOr<size_t> SizeOf(std::span<const uint8_t> begin);
  // Opens a record of the size that SizeOf says. Its payload goes to `room` when that has as many
  // bytes as the record less kOverhead, else it stays in the record's place. Returns where it is;
  // empty when the record has none. What lies behind it in `room` means nothing.
  absl::StatusOr<std::span<const uint8_t>> Open(std::span<uint8_t> record, std::span<uint8_t> room);

 private:
  class Direction;
  TlsRecords(Side side, std::unique_ptr<Direction> reads, std::unique_ptr<Direction> writes,
             uint64_t records_of_a_key);
  size_t UpdateIfDue(uint8_t* out);
  absl::Status TakeOther(uint8_t type, std::span<const uint8_t> content);
  absl::Status TakeAlert(std::span<const uint8_t> bytes) const;
  absl::Status TakeHandshake(std::span<const uint8_t> bytes);
  absl::Status TakeMessage(uint8_t type, std::span<const uint8_t> body, bool last);

  const Side side_;
  const std::unique_ptr<Direction> reads_, writes_;
  const uint64_t records_of_a_key_;
  bool update_due_ = false;         // the peer asked for it
  std::vector<uint8_t> handshake_;  // the beginning of a message whose rest is to come
  int without_payload_ = 0;         // records in a row
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_TLS_RECORDS_H_
