// The coded form of calibrated pages (joint_run_codec.h): what the tokens of a run of layers became
// by its transform, to bodies and back. The transform itself is not here: a CPU's is in
// joint_run_codec.cc, a GPU's in cuda/joint_device_codec.h.
//
//   JointCoder::Make(arguments, spec, calibration, classed)
//   coder.Encode(*coder.Find(layers), run, head, quantized)   // a quantized run in, bodies out
//   coder.Read(*coder.Find(layers), run, bodies)              // and back: parts of bodies,
//   JointReader(coder, calibrated, parts, tokens).Read(...)   // then coefficients of tokens
//
// Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_JOINT_CODER_H_
#define KVSTOW_KERNELS_METHODS_JOINT_CODER_H_

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/methods/first_tokens.h"
#include "kernels/methods/joint_sampling.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

struct JointOptions {
  float step = 0;
  float focus = 0;
  bool classed = false;  // step classes are always there, whatever the calibration knows
  uint32_t levels = 0, tokens_per_stream = 0;
  float StepAt(uint32_t level) const { return std::ldexp(step, levels - 1 - level); }
};

// What the tokens of one run became: magnitudes at the finest step, and energy classes.
struct QuantizedRun {
  uint32_t tokens = 0;            // all but the first ones
  std::vector<int32_t> q;         // [coded rank, PlaneStride(tokens)], 0 behind the tokens
  std::vector<uint8_t> energies;  // [PlaneStride(tokens)], the middle class behind the tokens
  std::vector<uint8_t> classes;   // of steps; empty where all steps are the same
  // Coefficients of the sampled tokens, over their step factors, [coded rank,
  // SampleStride(tokens)]; 0 behind the tokens.
  std::vector<float> sample;

  static size_t SampleStride(uint32_t tokens) {
    return PlaneStride((PlaneStride(tokens) + kGainEvery - 1) / kGainEvery);
  }
};

// The parts of a run's bodies, which they point into.
struct JointParts {
  const uint8_t* head = nullptr;  // of FirstTokens
  std::vector<uint8_t> classes;   // of steps of all other tokens, or empty
  std::vector<std::span<const uint8_t>> planes;
};

class JointCoder {
 public:
  // Errors are MakeJointRunCodec's.
  static absl::StatusOr<JointCoder> Make(const OpArguments& arguments, const KvSpec& spec,
                                         std::shared_ptr<const Calibration> calibration,
                                         bool classed);

  const KvSpec& spec() const { return spec_; }
  const JointOptions& options() const { return options_; }
  const FirstTokens& first_tokens() const { return first_tokens_; }
  const Calibration& calibration() const { return *calibration_; }

  // The run of just these layers; null when the calibration has none.
  const CalibratedRun* Find(LayerRange layers) const;
  bool HasClasses(const CalibratedRun& run) const;
  // How many leading coefficients of a run are coded: all, where step classes are told from them.
  size_t CodedRank(const CalibratedRun& run) const;

  // All levels. `head` is what FirstTokens::Encode made.
  std::vector<EncodedLevel> Encode(const CalibratedRun& calibrated, const Run& run,
                                   absl::string_view head, const QuantizedRun& quantized) const;

  // Of the bodies of the first levels. DATA_LOSS says what does not fit.
  absl::StatusOr<JointParts> Read(const CalibratedRun& calibrated, const Run& run,
                                  std::span<const SharedBytes> bodies) const;

 private:
  JointCoder(const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
             const JointOptions& options, FirstTokens first_tokens);

  friend class JointReader;
  PlaneCoder CoderOf(const CalibratedRun& run) const;
  std::vector<double> Gains(const PlaneCoder& coder, const QuantizedRun& quantized,
                            const Run& run) const;

  KvSpec spec_;
  std::shared_ptr<const Calibration> calibration_;
  JointOptions options_;
  FirstTokens first_tokens_;
  std::shared_ptr<const PlaneLookups> lookups_;
};

// Reads coefficients out of the bodies of one run. One caller's; `coder`, `calibrated` and `parts`
// outlive it.
class JointReader {
 public:
  // Of a run with so many tokens behind the first ones.
  JointReader(const JointCoder& coder, const CalibratedRun& calibrated, const JointParts& parts,
              uint32_t tokens)
      : parts_(parts),
        tokens_(tokens),
        options_(coder.options()),
        planes_(coder.CoderOf(calibrated)) {}

  size_t rank() const { return planes_.width(); }
  // Of `wanted`, within the whole streams `streams`; both count from the first token that is not
  // kept apart. [wanted.count, rank()], with step factors.
  absl::Status Read(TokenRange streams, TokenRange wanted, std::vector<float>& by_token);

 private:
  const JointParts& parts_;
  const uint32_t tokens_;
  const JointOptions options_;
  const PlaneCoder planes_;
  std::vector<int32_t> q_;
  std::vector<uint8_t> energies_;
  std::vector<float> c_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_JOINT_CODER_H_
