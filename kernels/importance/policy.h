// An importance policy: scores and an action, written out as ops of a recipe. The action is a
// `budget`, which drops tokens, or `class`, which says how finely each is coded (token_steps.h).
//
//   column(name=attn_window)|pool(kind=mean,width=5)|protect(first=4,last=32)|budget(keep=0.25)
//
// Score ops work on a stack, as a pocket calculator does. An op that makes a score pushes it.
// `plus` and `times` take two and push one. `pool`, `norm` and the like change the top. `protect`
// and the action stand last. budget(split=S) takes two scores: the first gets the part S of the
// budget, the second the rest. docs/CODECS.md lists the ops. The published methods are rows of
// PolicyPresets(), each one line of ops.
//
// Immutable: thread-safe. The same page and columns give the same selection on every machine with
// IEEE floating point. Scores that need a matrix product (leverage, redundancy, queries) are the
// exception: they may differ in a tie.
//
// Errors: INVALID_ARGUMENT names the op and what is wrong, also for a column of the wrong length.
// FAILED_PRECONDITION names the column or the statistics that the page lacks. OUT_OF_RANGE names a
// layer with NaN or Inf in the values that a score reads.
#ifndef KVSTOW_KERNELS_IMPORTANCE_POLICY_H_
#define KVSTOW_KERNELS_IMPORTANCE_POLICY_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/importance/budget.h"
#include "kernels/importance/importance.h"
#include "kernels/recipe/preset.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// A page and the scores made of it so far.
struct ScoreStack {
  const PageToScore& page;
  std::vector<ScoreMap> scores;
};
using ScoreStep = std::function<absl::Status(ScoreStack&)>;

// One row of the table of score ops (score_ops.cc).
struct ScoreOpInfo {
  absl::string_view name;
  std::span<const absl::string_view> arguments;
  int takes = 0, gives = 1;  // scores, off and onto the stack
  absl::StatusOr<ScoreStep> (*make)(const class OpArguments&);
  bool reads_queries = false;  // PageToScore::queries
};
const ScoreOpInfo* FindScoreOp(absl::string_view name);

// Names of the arguments of `protect`, of `budget` and of `class`, in the order in which they may
// stand without a name.
inline constexpr absl::string_view kProtectionArguments[] = {"first", "last"};
inline constexpr absl::string_view kBudgetArguments[] = {"keep",    "count", "threshold", "scope",
                                                         "profile", "beta",  "decay",     "lazy",
                                                         "floor",   "split", "merge"};
inline constexpr absl::string_view kClassArguments[] = {"power"};

// The columns that the layer profile kVariance (budget.h) reads.
inline constexpr absl::string_view kWindowColumn = "attn_window";
inline constexpr absl::string_view kVarianceColumn = "attn_window_var";

// Returns the scores of the column `name`, for the tokens of all layers and heads, in the shape of
// the page. Query heads are averaged into their KV heads.
absl::StatusOr<ScoreMap> ColumnScores(const PageToScore& page, absl::string_view name);

// Returns the recipe with the share `keep` (0..1) in its `budget`, without its count and threshold.
// Fails with INVALID_ARGUMENT when the recipe drops no tokens.
absl::StatusOr<Recipe> WithKeep(const Recipe& recipe, double keep);

class ImportancePolicy {
 public:
  // `ops` must end in `budget` or `class`.
  static absl::StatusOr<ImportancePolicy> Make(std::span<const Op> ops);

  // Returns the score that the action goes by: the last one.
  absl::StatusOr<ScoreMap> Scores(const PageToScore& page) const;
  // Returns the tokens that `budget` keeps.
  absl::StatusOr<Selection> Select(const PageToScore& page) const;
  // Returns the steps that `class` makes of the page's scores, in a run of layers (token_steps.h).
  std::vector<float> LogStepsOf(const PageToScore& page, const ScoreMap& scores,
                                LayerRange layers) const;
  const Protection& protection() const { return protection_; }
  const Budget& budget() const { return budget_; }
  // Names of the columns that it reads.
  std::span<const std::string> columns() const { return columns_; }
  // Returns whether it reads statistics of the queries.
  bool reads_queries() const { return reads_queries_; }

 private:
  absl::Status AddScoreOp(const Op& op, int& height);
  absl::Status Run(ScoreStack& stack) const;

  std::vector<ScoreStep> steps_;
  std::vector<std::string> columns_;
  bool reads_queries_ = false;
  Protection protection_;
  Budget budget_;
  double power_ = 0;  // power of `class`
};

// Published policies by name: ops with the arguments that the papers use.
std::span<const Preset> PolicyPresets();

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_POLICY_H_
