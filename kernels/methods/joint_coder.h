// The coded form of calibrated pages (joint_run_codec.h): turns the transformed tokens of a run of
// layers into bodies and back. The transform itself is elsewhere: a CPU's in joint_run_codec.cc, a
// GPU's in device/device_joint_codec.h.
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
#include "kernels/methods/page_tables.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

struct JointOptions {
  float step = 0;
  float focus = 0;
  bool classed = false;  // step classes are always there, whatever the calibration knows
  bool adapt = false;    // pages bring tables of their own (page_tables.h)
  uint32_t levels = 0, tokens_per_stream = 0;
  float StepAt(uint32_t level) const { return std::ldexp(step, levels - 1 - level); }
};

// The quantized tokens of one run: magnitudes at the finest step, and energy classes. Tokens are in
// the order of the page.
struct QuantizedRun {
  uint32_t tokens = 0;            // all but the first ones
  std::vector<int32_t> q;         // [coded rank, PlaneStride(tokens)], 0 behind the tokens
  std::vector<uint8_t> energies;  // [PlaneStride(tokens)], the middle class behind the tokens
  std::vector<uint8_t> classes;   // step classes; empty where all steps are the same
  // Coefficients of the sampled tokens, over their step factors, [coded rank,
  // SampleStride(tokens)]; 0 behind the tokens.
  std::vector<float> sample;

  static size_t SampleStride(uint32_t tokens) {
    return PlaneStride((PlaneStride(tokens) + kGainEvery - 1) / kGainEvery);
  }
};

// The parts of a run's bodies. `head` and `planes` point into the bodies.
struct JointParts {
  const uint8_t* head = nullptr;  // bytes of FirstTokens
  std::vector<uint8_t> classes;   // step classes of all other tokens, or empty
  PageTables tables;              // of the page's own
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

  // Returns the run of just these layers, or null when the calibration has none.
  const CalibratedRun* Find(LayerRange layers) const;
  bool HasClasses(const CalibratedRun& run) const;
  // Returns how many leading coefficients of a run are coded: all of them when step classes are
  // told from them, or the calibration has a vocabulary.
  size_t CodedRank(const CalibratedRun& run) const;

  // Returns all levels. `head` is the result of FirstTokens::Encode.
  std::vector<EncodedLevel> Encode(const CalibratedRun& calibrated, const Run& run,
                                   absl::string_view head, const QuantizedRun& quantized) const;

  // What a run's bodies are made of, besides their streams.
  struct Beside {
    absl::string_view head;  // the result of FirstTokens::Encode
    std::span<const uint8_t> classes;
    const PageTables& tables;
  };
  // Energy of the sampled coefficients, and their error at each level.
  struct Errors {
    double energy = 0;
    std::vector<double> left;
  };
  // Returns all levels, of the plane coder's bodies. Encode does it, and so does a GPU's encoder.
  std::vector<EncodedLevel> Assemble(const Run& run, const Beside& beside,
                                     std::vector<std::string> planes, const Errors& errors) const;
  // Null where pages do not adapt.
  const PageTablesFit* fit() const { return fit_.get(); }

  // Returns the shape of a run's planes, before a page's own tables (Adapt in page_tables.h).
  PlaneLayout LayoutOf(const CalibratedRun& run) const;

  // Reads the bodies of the first levels. Fails with DATA_LOSS, which says what does not fit.
  absl::StatusOr<JointParts> Read(const CalibratedRun& calibrated, const Run& run,
                                  std::span<const SharedBytes> bodies) const;

 private:
  JointCoder(const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
             const JointOptions& options, FirstTokens first_tokens);

  friend class JointReader;
  PlaneCoder CoderOf(const CalibratedRun& run, const PageTables& tables) const;
  Errors ErrorsOf(const PlaneCoder& coder, const QuantizedRun& quantized) const;

  KvSpec spec_;
  std::shared_ptr<const Calibration> calibration_;
  JointOptions options_;
  FirstTokens first_tokens_;
  std::shared_ptr<const PlaneLookups> lookups_;
  std::shared_ptr<const PageTablesFit> fit_;  // null where pages do not adapt
};

// Reads coefficients out of the bodies of one run. For one caller; `coder`, `calibrated` and
// `parts` outlive it.
class JointReader {
 public:
  // The run has `tokens` tokens behind the first ones.
  JointReader(const JointCoder& coder, const CalibratedRun& calibrated, const JointParts& parts,
              uint32_t tokens)
      : parts_(parts),
        tokens_(tokens),
        options_(coder.options()),
        planes_(coder.CoderOf(calibrated, parts.tables)) {}

  size_t rank() const { return planes_.width(); }
  // Reads the coefficients of `wanted`, within the whole streams `streams`. Both count from the
  // first token that is not kept apart. `by_token` becomes [wanted.count, rank()], with step
  // factors.
  absl::Status Read(TokenRange streams, TokenRange wanted, std::vector<float>& by_token);

 private:
  const JointParts& parts_;
  const uint32_t tokens_;
  const JointOptions options_;
  const PlaneCoder planes_;
  std::vector<int32_t> q_;
  std::vector<uint8_t> energies_;
  std::vector<float> c_, by_place_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_JOINT_CODER_H_
