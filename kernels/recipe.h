// Recipes: a codec written out as text, and the table of named ones.
//
// Grammar (lower case):
//   recipe   := pipeline                  preset := as op
//   pipeline := step { '|' step }         step := op | preset
//   op       := name [ '(' argument {',' argument} ')' ]
//   argument := [ name '=' ] value         value := number | word
//
// `int8` and `affine(bits=8,group=64)` are the same recipe: both have the same pipeline(), which is
// what pages store, so that a page decodes without the table. text() is what was parsed,
// canonically spaced.
//
// Where an op takes a step, `ratio` or `error` may stand in its place: rate control (rate_codec.h)
// then finds a step for each page.
//
// A Recipe is an immutable value; thread-safe. Parse answers INVALID_ARGUMENT with the text, the
// place and what is expected there. What a recipe means for a given KvSpec is checked by MakeCodec
// (codec.h).
#ifndef KVSTOW_KERNELS_RECIPE_H_
#define KVSTOW_KERNELS_RECIPE_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow {

struct OpArgument {
  std::string name;  // "" when given by place
  std::string value;
  bool operator==(const OpArgument&) const = default;
};

struct Op {
  std::string name;
  std::vector<OpArgument> arguments;
  bool operator==(const Op&) const = default;
};

// `op(name=value,...)|...`: what Parse reads back.
std::string PipelineText(std::span<const Op> ops);

class Recipe {
 public:
  static absl::StatusOr<Recipe> Parse(absl::string_view text);

  const std::string& text() const { return text_; }
  // The written-out form: ops with their arguments, presets expanded.
  const std::string& pipeline() const { return pipeline_; }
  std::span<const Op> ops() const { return ops_; }
  // The importance policy that the recipe begins with, up to `budget` or `class`, or nothing; and
  // what codes the tokens, or nothing when those that `budget` keeps stay as they are.
  std::span<const Op> policy_ops() const { return ops().first(policy_ops_); }
  std::span<const Op> codec_ops() const { return ops().subspan(policy_ops_); }
  // Whether the policy drops tokens; it may also say how finely each is coded.
  bool drops_tokens() const { return policy_ops_ > 0 && ops_[policy_ops_ - 1].name == "budget"; }
  // Two recipes are equal when their pipelines are.
  bool operator==(const Recipe& other) const { return pipeline_ == other.pipeline_; }

 private:
  std::string text_, pipeline_;
  std::vector<Op> ops_;
  size_t policy_ops_ = 0;
};

// One row of the table of presets. Names are for ever; a pipeline, once released, does not change.
struct Preset {
  absl::string_view name;
  absl::string_view pipeline;
  absl::string_view summary;  // one line for `kvstow codec list`
  absl::string_view source;   // paper or format, "" for our own
  absl::string_view needs;    // "", "calibration", "attention"
};
std::span<const Preset> Presets();

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_RECIPE_H_
