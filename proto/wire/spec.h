// Converts KvSpec between the wire (kvstow.v1.KvSpec) and the program (kernels/page/page.h): one
// place for the service and the client.
//
// Free functions; thread-safe. FromProto refuses unknown enum values by name (INVALID_ARGUMENT).
// Validate() of kernels/page/page.h checks the ranges of the fields.
#ifndef KVSTOW_PROTO_WIRE_SPEC_H_
#define KVSTOW_PROTO_WIRE_SPEC_H_

#include "absl/status/statusor.h"
#include "kernels/page/page.h"
#include "kvstow/v1/types.pb.h"

namespace kvstow {

void ToProto(const KvSpec& spec, v1::KvSpec& out);
absl::StatusOr<KvSpec> FromProto(const v1::KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_SPEC_H_
