// Tags: what stands for a page, a space or a tenant in the names of remote values
// (docs/FORMAT.md, "Remote values").
//
// A tag is the same on every server. Where values are sealed, a tag never leaves the process: the
// tenant's key makes another one of it (remote_key.h). Values, and free functions; thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_TAG_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_TAG_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "service/spaces/space.h"

namespace kvstow {

struct RemoteTag {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const RemoteTag&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const RemoteTag& t) {
    return H::combine(std::move(h), t.bytes);
  }
};

// Each is the first bytes of SHA-256: over a space, its generation and a page's key;
RemoteTag TagOf(const Space& space, uint64_t generation, absl::string_view key);
// over the name of a space, whatever space has it;
RemoteTag NameTagOf(absl::string_view tenant, absl::string_view space);
// over the space itself, whatever its generation (remote_purge.h);
RemoteTag SpaceTagOf(const Space& space);
// over a tenant and a calibration that its spaces name;
RemoteTag CalibrationTagOf(absl::string_view tenant, const CalibrationId& id);
// and over the name of a tenant.
RemoteTag KeyTagOf(absl::string_view tenant);

// Names of values. Those of one page lie together (RemoteValue).
std::string RecordName(absl::string_view prefix, const RemoteTag& tag);
std::string SegmentName(absl::string_view prefix, const RemoteTag& tag, size_t index);
std::string PurgeName(absl::string_view prefix, const RemoteTag& space);
std::string SpaceName(absl::string_view prefix, const RemoteTag& name);
std::string CalibrationName(absl::string_view prefix, const RemoteTag& calibration);
std::string CalibrationPartName(absl::string_view prefix, const RemoteTag& calibration,
                                size_t index);
std::string KeyName(absl::string_view prefix, const RemoteTag& tenant);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_TAG_H_
