// The tokens of a run of layers as vectors for the joint transform: K before RoPE of each layer,
// then V of each layer, in F32. A vector has layers * kv_heads * (head_dim_k + head_dim_v) values.
//
// Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_JOINT_VECTORS_H_
#define KVSTOW_KERNELS_METHODS_JOINT_VECTORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"
#include "kernels/transform/rope.h"

namespace kvstow {

class JointVectors {
 public:
  // `spec` must be valid and not FP8. The run's tokens follow `before` others of their page.
  JointVectors(const KvSpec& spec, const Run& run, uint32_t before = 0);

  size_t width() const { return width_; }
  // Writes the vectors of `tokens`, one after the other, to `x`, from the run's raw bytes (as a
  // page has them). Returns false when a value is NaN or Inf.
  bool Gather(std::span<const uint8_t> raw, TokenRange tokens, float* x) const;
  // Does the inverse: rounds finite `x` to the page's dtype.
  void Scatter(const float* x, TokenRange tokens, std::span<uint8_t> raw) const;

 private:
  // One slab of the run, and the place of its values in a vector.
  struct Slab {
    Part part;
    uint32_t layer;     // of the page
    size_t raw_offset;  // offset of its first token
    size_t row;         // values a token
    size_t column;
  };

  const KvSpec spec_;
  const LayerRotations rotations_;
  size_t width_ = 0;
  std::vector<Slab> slabs_;
};

// The first tokens of a text lie far outside the distribution of all others. A calibration is made
// without them, and the joint codec stores them apart.
inline constexpr uint32_t kFirstTokens = 4;

// Returns how many leading tokens of a page are at positions below `end`.
uint32_t CountFirstTokens(uint64_t first_position, uint32_t tokens, uint32_t end = kFirstTokens);

// Returns how many leading coefficients tell how large a token is: those that spread at least a
// quarter of the step, and are therefore coded; a quarter of all where these are few.
size_t EnergyCoefficients(std::span<const float> sigma, float step);
// Returns how large a token is: the mean energy of its leading coefficients over sigma^2, in
// octaves, 8 = as calibrated. The plane coder moves its tables by it. It takes as many as both
// have, at least 1: fewer are coded than EnergyCoefficients where steps are very coarse.
uint8_t EnergyClass(std::span<const float> coefficients, std::span<const float> sigma);
// Returns the spread of a token of this class, over sigma.
float EnergyFactor(uint8_t energy_class);

// Gathers the vectors of the page's tokens beyond the first of a text for a fit; `out` may end up
// empty. Fails with INVALID_ARGUMENT when the page does not fit the spec, or holds NaN or Inf.
absl::Status GatherToCalibrate(const KvSpec& spec, LayerRange layers, const PageToEncode& page,
                               std::vector<float>& out);
}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_JOINT_VECTORS_H_
