// The cost of scoring the tokens of a page, beside encoding it.
//
//   BM_Select/PRESET  a policy's choice: its scores and which tokens stay
//   BM_Score/OP       one score of all tokens, layers and heads
//   BM_ForetoldAttention  attention by foretold queries, maps of every third layer and all heads
//
// `of_encode` is that time over the time that quarot (4 bits) takes to encode the same page, taken
// in turns with it; both are times of this thread's processor. Pages come from memory, as those of
// codec_bench.cc do.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/calibration/query_means.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/importance/foretold_attention.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_scores.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {
namespace {

constexpr size_t kScoredPages = 32;
constexpr uint32_t kQueryHeads = 9;
constexpr uint32_t kAskingHeads = 6;  // two for each KV head

AttentionColumns Columns(const KvSpec& spec) {
  AttentionColumn column{kQueryHeads, kTokens,
                         GaussianValues(size_t{spec.layers} * kTokens * kQueryHeads)};
  for (float& x : column.scores) x = std::exp(x);
  AttentionColumns columns;
  for (const char* name :
       {"attn_sum", "attn_window", "attn_window_var", "attn_last", "attn_hits", "kvzip", "kvzap"}) {
    columns.emplace(name, column);
  }
  return columns;
}

QueryStatistics Queries(const KvSpec& spec) {
  const uint32_t dim = spec.head_dim_k;
  const size_t heads = size_t{spec.layers} * kQueryHeads;
  QueryStatistics out{spec.layers, kQueryHeads, dim, GaussianValues(heads * dim), {}, {}};
  out.covariance.resize(heads * dim * dim);
  for (size_t i = 0; i < heads * dim; ++i)
    out.covariance[i / dim * dim * dim + i % dim * (dim + 1)] = 1;
  out.magnitude.assign(heads * (dim / 2), 1.25F);
  FindDirections(out);
  return out;
}

KvSpec RotatedSpec() {
  KvSpec spec = SmallModelSpec(DType::kF16);
  spec.rope.layout = RopeSpec::Layout::kHalf;
  return spec;
}

// Runs work(page) on page after page, in turns with encoding another page.
template <typename F>
void AgainstEncode(benchmark::State& state, F work) {
  const KvSpec spec = RotatedSpec();
  const auto codec = *MakeCodec(*ParseRecipe("quarot"), spec);
  const std::vector<std::vector<uint8_t>> pages(kScoredPages, GaussianPage(spec));
  const AttentionColumns columns = Columns(spec);
  const QueryStatistics queries = Queries(spec);
  double working = 0, encoding = 0;
  size_t i = 0;
  for (auto _ : state) {
    const std::vector<uint8_t>& raw = pages[++i % kScoredPages];
    const PageToScore page{spec, raw, kTokens, 0, &columns, &queries};
    const double begin = ThreadSeconds();
    if (!work(page).ok()) state.SkipWithError("is not scored");
    const double middle = ThreadSeconds();
    const PageToEncode other{.raw = pages[(i + kScoredPages / 2) % kScoredPages],
                             .tokens = kTokens};
    benchmark::DoNotOptimize(codec->Encode(other));
    encoding += ThreadSeconds() - middle;
    working += middle - begin;
    state.SetIterationTime(middle - begin);
  }
  state.counters["of_encode"] = working / encoding;
}

void BM_Select(benchmark::State& state, const std::string& pipeline) {
  const auto policy = *ImportancePolicy::Make(ParseRecipe(pipeline)->ops());
  AgainstEncode(state, [&](const PageToScore& page) { return policy.Select(page).status(); });
}

void BM_Score(benchmark::State& state, const std::string& op) {
  const auto policy = *ImportancePolicy::Make(ParseRecipe(op + "|budget(keep=0.5)")->ops());
  AgainstEncode(state, [&](const PageToScore& page) { return policy.Scores(page).status(); });
}

// Every third layer has queries, as in calibrations.
QueryMeans MeansFor(const KvSpec& spec) {
  QueryMeans out;
  out.heads = kAskingHeads;
  for (uint32_t layer = 1; layer < spec.layers; layer += 3) {
    out.layers.push_back({layer, GaussianValues(size_t{kAskingHeads} * spec.head_dim_k)});
  }
  return out;
}

void BM_ForetoldAttention(benchmark::State& state) {
  const QueryMeans means = MeansFor(RotatedSpec());
  AgainstEncode(state,
                [&](const PageToScore& page) { return ForetoldAttention(means, page).status(); });
}
BENCHMARK(BM_ForetoldAttention)->UseManualTime()->Unit(benchmark::kMillisecond);

const int kRegistered = [] {
  const auto add = [](absl::string_view what, absl::string_view name, auto function,
                      const std::string& argument) {
    benchmark::RegisterBenchmark(absl::StrCat(what, "/", name).c_str(), function, argument)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const Preset& preset : PolicyPresets()) {
    // A table of heads is as long as the model says.
    const bool table = preset.name == "duoattention";
    const std::string pipeline(preset.pipeline);
    add("BM_Select", preset.name, BM_Select,
        table ? "head_table(heads=aaaaaaaaaaaaaaaaaaaaaaa)|budget(keep=1,threshold=1)" : pipeline);
  }
  for (const char* op :
       {"position", "random", "key_norm", "value_norm", "key_diversity", "redundancy", "leverage",
        "lag", "column(name=attn_sum)", "expected", "query_direction", "trigonometric"}) {
    add("BM_Score", op, BM_Score, op);
  }
  return 0;
}();

}  // namespace
}  // namespace kvstow
