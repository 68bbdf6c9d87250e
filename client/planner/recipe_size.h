// Finds how many bytes a recipe stores for each token of a model.
//
// A recipe of a fixed rate takes the same bytes whatever the values are: the planner measures it on
// pages of the model's own geometry. Entropy coders, importance policies and calibrated codes
// depend on the data: the user measures their ratio on a case (`kvstow codec roundtrip`) and gives
// it.
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

// The origin of a figure. Every output names one.
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
  // Raw bytes that its decoder gives; 0 = unknown: Hardware's speed counts.
  double decode_bytes_per_s = 0;
  Origin decode_origin = Origin::kGiven;
  uint64_t StoredBytes(uint64_t raw_bytes) const;  // rounded up
};

// Returns the spec of a rank's pages, for a codec. Fails with FAILED_PRECONDITION when its layers
// differ in geometry.
absl::StatusOr<KvSpec> SpecOfRank(const ModelKv& model, const RankKv& rank, uint32_t page_tokens);

// Parses "NAME=RATIO" or "NAME=RATIO@SPEED", as below. Fails with INVALID_ARGUMENT when the text
// has no such ratio.
absl::StatusOr<RecipeSize> GivenRatio(absl::string_view text);

// Returns the size of a recipe. "int8", a preset or a pipeline, is measured. "kvstow=6.0" or "any
// name=4" gives the ratio: a number of at least 1 behind the last '=' outside parentheses. Behind
// either, "@0.8GB/s" gives the speed of the decoder. Fails with INVALID_ARGUMENT, which names the
// recipe. For a recipe whose size depends on the data, or that needs a calibration, the message
// asks for its ratio.
absl::StatusOr<RecipeSize> SizeOfRecipe(const std::string& text, const KvSpec& spec);

// Adds the output of one or more runs of `kvstow codec roundtrip --format json`: the recipe of
// each, and its measured ratio and decoder speed. The ratio includes pages that fell back to being
// kept exactly. Fails with INVALID_ARGUMENT, which names file, line and field, and with NOT_FOUND
// when the file cannot be read.
absl::Status AddRoundtrips(const std::string& path, std::vector<RecipeSize>& recipes);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_RECIPE_SIZE_H_
