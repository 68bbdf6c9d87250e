// Recipes: a codec written out as text.
//
// Grammar (lower case):
//   recipe   := pipeline                  preset := as op
//   pipeline := step { '|' step }         step := op | preset
//   op       := name [ '(' argument {',' argument} ')' ]
//   argument := [ name '=' ] value         value := number | word
//
// `int8` and `affine(bits=8,group=64)` are the same recipe: both have the same pipeline(). Pages
// store the pipeline, so a page decodes without the table of presets. text() is the parsed text,
// canonically spaced.
//
// Where an op takes a step, `ratio`, `error` or `divergence` may stand in its place. Rate control
// (rate_codec.h) then finds a step for each page.
//
// A Recipe is an immutable value; thread-safe. ParseRecipe (parse_recipe.h) makes one from text.
// MakeCodec (make_codec.h) checks whether it fits a given KvSpec.
#ifndef KVSTOW_KERNELS_RECIPE_RECIPE_H_
#define KVSTOW_KERNELS_RECIPE_RECIPE_H_

#include <span>
#include <string>
#include <vector>

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

// Returns `op(name=value,...)|...`, which ParseRecipe reads back.
std::string PipelineText(std::span<const Op> ops);

class Recipe {
 public:
  Recipe() = default;
  // `ops` are written out: no presets, and every argument that has a name carries it. `text` is the
  // parsed text; empty = the pipeline itself.
  explicit Recipe(std::vector<Op> ops, std::string text = "");

  const std::string& text() const { return text_; }
  // Returns the written-out form: ops with their arguments, presets expanded.
  const std::string& pipeline() const { return pipeline_; }
  std::span<const Op> ops() const { return ops_; }
  // policy_ops are the importance policy that the recipe begins with, up to `budget` or `class`, or
  // nothing. codec_ops code the tokens; they are empty when the tokens that `budget` keeps stay as
  // they are.
  std::span<const Op> policy_ops() const { return ops().first(policy_ops_); }
  std::span<const Op> codec_ops() const { return ops().subspan(policy_ops_); }
  // Returns whether the policy drops tokens. Another policy says how finely each token is coded.
  bool drops_tokens() const { return policy_ops_ > 0 && ops_[policy_ops_ - 1].name == "budget"; }
  // Two recipes are equal when their pipelines are.
  bool operator==(const Recipe& other) const { return pipeline_ == other.pipeline_; }

 private:
  std::string text_, pipeline_;
  std::vector<Op> ops_;
  size_t policy_ops_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_RECIPE_RECIPE_H_
