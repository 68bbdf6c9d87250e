// The run codec of methods that see a token of a run as one vector [K before RoPE of each layer, V
// of each layer] (joint_vectors.h). It takes RoPE off and puts it back, stores some tokens
// raw, and leaves the vectors of all others to a VectorCoder.
//
// Body, one level: the raw tokens, slab after slab in the page's dtype, then the coder's bytes for
// the others (none when there are none). Raw are the tokens at positions below `first` (they lie
// outside every distribution) and the last `last` of the page.
//
// VectorCoder and the run codec are immutable: thread-safe. Bytes are the same for every SIMD
// target when the coder's are.
#ifndef KVSTOW_KERNELS_METHODS_VECTOR_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_VECTOR_RUN_CODEC_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

class VectorCoder {
 public:
  virtual ~VectorCoder() = default;
  // Appends the code of `tokens` >= 1 finite vectors at `x`. Returns false when they are beyond
  // what it can hold.
  virtual bool Encode(LayerRange layers, const float* x, size_t tokens, std::string& out) const = 0;
  // Writes all vectors. Checks the size of `body` before it reads or allocates. Fails with
  // DATA_LOSS, which says what does not fit.
  virtual absl::Status Decode(LayerRange layers, std::span<const uint8_t> body, size_t tokens,
                              float* x) const = 0;
};

// The place of a slab in the vectors of a run of `layers`, K of all layers first.
struct VectorSlab {
  Part part = Part::kK;
  uint32_t layer = 0;  // layer of the page
  size_t column = 0, width = 0;
  size_t index = 0;  // in the page, V of each layer behind its K: the order of tables
};
std::vector<VectorSlab> SlabsOfVectors(const KvSpec& spec, LayerRange layers);
// Returns the slabs of a whole page, by index.
std::vector<VectorSlab> SlabsInOrder(const KvSpec& spec);

struct RawTokens {
  uint32_t first = 0, last = 0;
};
// Reads arguments `first` (its default comes from the op) and `last` (0), each 0..kMaxPageTokens.
absl::StatusOr<RawTokens> ReadRawTokens(const OpArguments& arguments, uint32_t first);

// The coder sees only whole runs of `layers_per_run` layers (the last may have fewer). A page that
// says otherwise is DATA_LOSS.
std::unique_ptr<const RunCodec> MakeVectorRunCodec(const KvSpec& spec, uint32_t layers_per_run,
                                                   RawTokens raw_tokens,
                                                   std::unique_ptr<const VectorCoder> coder);

// Returns the tables of the op's own section, for a coder. The pointer keeps the calibration alive.
// Fails with INVALID_ARGUMENT when the calibration is null, lacks them, or has another shape.
template <typename Tables>
absl::StatusOr<std::shared_ptr<const Tables>> TablesFor(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  if (calibration == nullptr || !calibration->Has(need.section) ||
      calibration->shape() != ShapeFor(spec, need.layers_per_run)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "op '", need.section, "': the calibration was made for another model, op or run"));
  }
  const auto* const tables = static_cast<const Tables*>(calibration->Tables(need.section));
  return std::shared_ptr<const Tables>(std::move(calibration), tables);
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_VECTOR_RUN_CODEC_H_
