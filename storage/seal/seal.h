// Seals: values encrypted for places outside the process (docs/FORMAT.md, "Sealed values").
//
// A sealed value is as long as the value itself; beside it goes its seal. The seal's tag
// authenticates the value and what it is bound to: tenant, space, place, and of a segment the
// digest of its body. So a value that was moved, swapped or put back opens nowhere else.
//
// Values, and free functions over them; a Sealing or an Opening belongs to one thread at a time.
// Parsing fails with DATA_LOSS for damage, and with FAILED_PRECONDITION for a version that this
// build does not know.
#ifndef KVSTOW_STORAGE_SEAL_SEAL_H_
#define KVSTOW_STORAGE_SEAL_SEAL_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"
#include "base/bytes.h"
#include "storage/seal/data_keys.h"
#include "storage/segment.h"

namespace kvstow {

inline constexpr uint16_t kSealVersion = 1;
inline constexpr size_t kSealBytes = 48;

struct Seal {
  uint32_t key = 0;  // id of the tenant's data key; 0 = the value is in clear
  AeadNonce nonce{};
  AeadTag tag{};
  bool operator==(const Seal&) const = default;
};
void PutSeal(ByteWriter& out, const Seal& seal);
absl::StatusOr<Seal> ParseSeal(std::span<const uint8_t> bytes);

// What a sealed value is, and where it belongs.
struct SealPlace {
  enum class Kind : uint8_t { kSpace = 1, kPage = 2, kSegment = 3, kTables = 4 };
  Kind kind = Kind::kSegment;
  SpaceId space = 0;
  PageNumber page = 0;  // of a page or a segment; of tables, the number of their file
  uint16_t index = 0;   // of a segment
  uint64_t digest = 0;  // of a segment's body
};
// Returns the bytes that the tag authenticates beside the value.
std::string BoundBytes(absl::string_view tenant, const SealPlace& place);

// Encrypts one value.
class Sealing {
 public:
  // No key may ever see the same nonce for two values: RandomNonce().
  Sealing(const DataKey& key, absl::string_view tenant, const SealPlace& place,
          const AeadNonce& nonce);
  // Encrypts the next bytes; `out` may be `in`.
  void Update(std::span<const uint8_t> in, uint8_t* out) { message_.Update(in, out); }
  Seal Finish();

 private:
  Seal seal_;
  AeadMessage message_;
};

// Decrypts one value. What it gave means nothing before Finish returned OK.
class Opening {
 public:
  Opening(const DataKey& key, absl::string_view tenant, const SealPlace& place, const Seal& seal);
  void Update(std::span<const uint8_t> in, uint8_t* out) { message_.Update(in, out); }
  // Fails with DATA_LOSS when the value is not what was sealed for this place.
  absl::Status Finish();

 private:
  AeadTag tag_;
  AeadMessage message_;
};

// The same for a whole value in memory.
struct SealedValue {
  Seal seal;
  std::string bytes;
};
SealedValue SealWhole(Sealing sealing, std::span<const uint8_t> value);
absl::StatusOr<std::string> OpenWhole(Opening opening, std::span<const uint8_t> sealed);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_SEAL_SEAL_H_
