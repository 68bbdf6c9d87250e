// A load described by a few numbers, as a trace: for who has no trace yet.
//
//   sessions=200,turns=5,shared=1024,prompt=2000,output=300,rate=0.5,think=30
//
// Sessions arrive at random (Poisson) at `rate` a second and have `turns` turns, the next one an
// exponentially distributed time of mean `think` seconds after the last. The prompt of a turn is
// the shared prefix (`shared` tokens, the same for all), everything said before, and a new text of
// exponentially distributed length with mean `prompt`; answers have mean `output` and join the
// history. As in Mooncake's traces a request names the blocks of its prompt alone: what it computed
// for its answer is first seen in the next turn.
//
// Fields: sessions, turns, prompt and rate are needed; shared, output and think are 0 when left
// out, `block` (tokens) is 512 and `seed` 1. The same text gives the same trace on every machine.
//
// Free function; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_PROFILE_H_
#define KVSTOW_CLIENT_PLANNER_PROFILE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/trace/trace_reader.h"

namespace kvstow::planner {

// INVALID_ARGUMENT names the field: unknown, missing, out of range, or a load of more than 100
// million blocks.
absl::StatusOr<Trace> TraceOfProfile(absl::string_view text);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_PROFILE_H_
