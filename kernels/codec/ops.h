// The table of ops: every primitive that a recipe can name. A new primitive adds one row.
//
// Names are persisted (pages store their pipeline) and never change. Thread-safe; rows live for
// ever.
#ifndef KVSTOW_KERNELS_CODEC_OPS_H_
#define KVSTOW_KERNELS_CODEC_OPS_H_

#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/methods/run_codec.h"
#include "kernels/quantize/combine.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/split.h"
#include "kernels/transform/transform.h"

namespace kvstow {

enum class OpKind : uint8_t {
  kRun,         // how many layers a segment holds; stands first
  kRaw,         // keeps the bytes; stands alone
  kCalibrated,  // codes all of a run by a calibration; stands alone
  kTransform,   // any number, before a quantizer or a split
  kQuantize,    // ends a stage
  kSplit,       // codes two pieces of a slab apart; ends a stage (compose.h)
  kWrap,        // hands slabs on in another shape; before a stage (combine.h)
  kRope,        // takes K's rotary positions off; stands first but for kRun (rope_run_codec.h)
  kMark,        // k, v, rest, residual: says what the ops behind it are for (compose.h); protect,
                // budget, class: ends an importance policy (importance/policy.h)
  kRunCodec,    // codes K and V of all layers of a run by itself; stands alone but for kRun
};

// Makes the run codec of a kRunCodec. INVALID_ARGUMENT names the argument.
using MakeOwnRunCodec = absl::StatusOr<std::unique_ptr<const RunCodec>> (*)(const OpArguments&,
                                                                            const KvSpec&);

// Makes the run codec of a kCalibrated. Fails also when the calibration is not for this op and
// spec.
using MakeCalibratedRunCodec = absl::StatusOr<std::unique_ptr<const RunCodec>> (*)(
    const OpArguments&, const KvSpec&, std::shared_ptr<const Calibration>);

// Starts the fit of a kCalibrated (calibrate.h). Fails with INVALID_ARGUMENT when the arguments or
// the statistics do not fit the spec.
using StartFit = absl::StatusOr<std::unique_ptr<CalibrationFit>> (*)(const KvSpec&,
                                                                     const OpArguments&,
                                                                     const ModelStats&);

// The steps of an op among which rate control (rate_codec.h) may look; all 0 when it has none.
struct StepRange {
  double least = 0, most = 0, usual = 0;
};

struct OpInfo {
  absl::string_view name;
  OpKind kind;
  // Names of the arguments, in the order in which they may stand without a name. Empty when the op
  // takes none or a list of values.
  std::span<const absl::string_view> arguments;
  MakeTransform make_transform = nullptr;            // of a kTransform
  MakeQuantizer make_quantizer = nullptr;            // of a kQuantize
  MakeOwnRunCodec make_run_codec = nullptr;          // of a kRunCodec
  MakeCalibratedRunCodec make_calibrated = nullptr;  // of a kCalibrated
  // Reads the op's section of a calibration blob; null for `joint`, whose tables are a blob's
  // version 1.
  SectionParser parse_tables = nullptr;
  StartFit start_fit = nullptr;
  StepRange steps = {};
  MakeSplit make_split = nullptr;  // of a kSplit
  MakeWrap make_wrap = nullptr;    // of a kWrap
  // Makes the codec whose tokens have the classes of steps that a policy gives
  // (importance/token_steps.h). The calibration is null when the op needs none. Null when the op
  // knows no classes.
  MakeCalibratedRunCodec make_classed = nullptr;
};

// Returns null when there is no such op.
const OpInfo* FindOp(absl::string_view name);

// Returns whether the name is that of an op: one of this table, or a step of an importance policy
// (importance/policy.h).
bool IsOp(absl::string_view name);

// Returns the names as OpInfo::arguments does, for an op of either kind.
std::span<const absl::string_view> OpArgumentNames(absl::string_view name);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_OPS_H_
