// A space at rest and as its fingerprint: every field that changes bytes, written out
// (docs/FORMAT.md, "Record of a space").
//
// Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_SPACES_SPACE_RECORD_H_
#define KVSTOW_SERVICE_SPACES_SPACE_RECORD_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/page/page.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/space.h"

namespace kvstow {

// The record of a space at rest; docs/FORMAT.md. Records of version 1 are read too: what they do
// not name is not there, and a revision that they left empty is kUnversioned. Parsing answers
// DATA_LOSS, FAILED_PRECONDITION for an unknown version, and what ParseRecipe and
// Calibrations::CodecOf answer, but that a missing calibration makes a space with
// calibration_missing.
std::string SerializeSpace(const Space& space);
absl::StatusOr<std::shared_ptr<Space>> ParseSpace(std::span<const uint8_t> bytes,
                                                  Calibrations& calibrations);

Fingerprint FingerprintOf(const KvSpec& spec, absl::string_view pipeline, SpacePromise promise);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACE_RECORD_H_
