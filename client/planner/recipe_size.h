// How many bytes a recipe stores for each token of a model.
//
// A recipe of a fixed rate takes the same bytes whatever the values are: it is measured on pages of
// the model's own geometry. Entropy coders, importance policies and calibrated codes depend on the
// data: their ratio has to be measured on a case (`kvstow codec roundtrip`) and given.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_RECIPE_SIZE_H_
#define KVSTOW_CLIENT_PLANNER_RECIPE_SIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/planner/model.h"

namespace kvstow::planner {

// Where a figure comes from. Every output names one.
enum class Origin {
  kPublished,  // the model's configuration: exact
  kGiven,      // typed in
  kMeasured,   // on this machine, or counted in a trace
  kModelled,   // computed from the others by a formula that simplifies
};
absl::string_view OriginName(Origin origin);  // "published", "given", "measured", "modelled"

struct RecipeSize {
  std::string recipe;
  double ratio = 1;  // raw bytes over stored bytes
  Origin origin = Origin::kMeasured;
  // Raw bytes that its decoder gives; 0 = not known, and as Hardware says.
  double decode_bytes_per_s = 0;
  Origin decode_origin = Origin::kGiven;
  uint64_t StoredBytes(uint64_t raw_bytes) const;  // rounded up
};

// What pages of a rank look like to a codec. FAILED_PRECONDITION when its layers differ in
// geometry.
absl::StatusOr<KvSpec> SpecOfRank(const ModelKv& model, const RankKv& rank, uint32_t page_tokens);

// "NAME=RATIO" or "NAME=RATIO@SPEED", as below. INVALID_ARGUMENT when there is no such ratio.
absl::StatusOr<RecipeSize> GivenRatio(absl::string_view text);

// "int8": measured; a preset or a pipeline. "kvstow=6.0" or "any name=4": given, a number of at
// least 1 behind the last '=' outside parentheses. Behind either, "@0.8GB/s" gives the speed of the
// decoder. INVALID_ARGUMENT names the recipe; one whose size depends on the data, or that needs a
// calibration, asks for its ratio.
absl::StatusOr<RecipeSize> SizeOfRecipe(const std::string& text, const KvSpec& spec);

// Adds what `kvstow codec roundtrip --format json` printed, once or more often: recipe, ratio and
// speed of the decoder of each, measured. Pages that fell back to being kept exactly are part of
// the ratio. INVALID_ARGUMENT names file, line and field; NOT_FOUND a file that cannot be read.
absl::Status AddRoundtrips(const std::string& path, std::vector<RecipeSize>& recipes);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_RECIPE_SIZE_H_
