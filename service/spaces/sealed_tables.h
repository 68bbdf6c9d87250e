// Sealed tables: calibrations that tell of a tenant's pages, as a server with a master key keeps
// them on disk. docs/FORMAT.md ("Sealed tables") gives every byte; a golden file pins them.
//
// They are sealed as pages are, by the tenant's data keys. The tag is bound to tenant, space and
// the number that names the file. So a file that was renamed, or given to another space, does not
// open.
//
// Values, and free functions over them; thread-safe.
#ifndef KVSTOW_SERVICE_SPACES_SEALED_TABLES_H_
#define KVSTOW_SERVICE_SPACES_SEALED_TABLES_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/aead.h"
#include "base/shared_bytes.h"
#include "storage/seal/data_keys.h"
#include "storage/segment.h"

namespace kvstow {

inline constexpr uint16_t kSealedTablesVersion = 1;

// Where tables belong.
struct TablesPlace {
  std::string tenant;
  SpaceId space = 0;    // 0 = they came from another server, for pages of the tenant
  uint64_t number = 0;  // random: it tells nothing of the tables
  bool operator==(const TablesPlace&) const = default;
};

// The name of the file, and its number again. DATA_LOSS: it is no such name.
std::string TablesFileName(uint64_t number);
absl::StatusOr<uint64_t> TablesNumberOf(absl::string_view file_name);

// Returns the bytes of the file. No key may ever see the same nonce twice.
std::string SealTables(const DataKey& key, const TablesPlace& place, std::span<const uint8_t> blob,
                       const AeadNonce& nonce = RandomNonce());

// Returns whether the bytes begin like sealed tables.
bool IsSealedTables(std::span<const uint8_t> file);
// Reads what is in clear of a file. DATA_LOSS: it is damaged. FAILED_PRECONDITION: its version is
// not known here.
absl::StatusOr<TablesPlace> PlaceOfTables(uint64_t number, std::span<const uint8_t> file);

struct OpenedTables {
  TablesPlace place;
  SharedBytes blob;
};
// Fails as PlaceOfTables does; with UNAVAILABLE when the key is not here, so that the file must
// stay; with DATA_LOSS for what was not sealed for this place.
absl::StatusOr<OpenedTables> OpenTables(DataKeys& keys, uint64_t number, std::string file);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SEALED_TABLES_H_
