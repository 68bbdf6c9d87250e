// kvstow codec calibrate: a calibration blob from cases, or from the pages of a running server.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "client/case/mapped_file.h"
#include "client/case/safetensors.h"
#include "client/cli/cli.h"
#include "client/cli/page_source.h"
#include "client/cli/text.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/calibration/query_means.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_needs.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/page_to_encode.h"
#include "kernels/recipe/recipe.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  std::string recipe, out, model_stats;
  std::vector<std::string> cases;
  ServerFlags server;
  std::string space;
  uint32_t max_pages = 256;
};

struct Report {
  std::shared_ptr<const Calibration> calibration;
  std::string things;  // that it was made from, "cases" or "pages"
  size_t count = 0;
  uint64_t tokens = 0, bytes = 0;
  double seconds = 0;
};

// Appends a tensor of 32-bit floats of the given shape.
absl::Status Append(const SafetensorsReader& file, const std::string& name,
                    const std::vector<uint64_t>& shape, std::vector<float>& out) {
  KVSTOW_ASSIGN_OR_RETURN(const Tensor tensor, file.Find(name));
  if (tensor.dtype != "F32" || tensor.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor ", name, ": its type or shape does not fit the cases' model"));
  }
  const std::span<const uint8_t> bytes = file.Data(tensor);
  out.resize(out.size() + bytes.size() / sizeof(float));
  std::memcpy(out.data() + out.size() - bytes.size() / sizeof(float), bytes.data(), bytes.size());
  return absl::OkStatus();
}

// Returns the rows and columns of a matrix; zeros where there is no such matrix.
std::pair<uint64_t, uint64_t> MatrixShape(const SafetensorsReader& file, const std::string& name) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end() || found->second.shape.size() != 2) return {0, 0};
  return {found->second.shape[0], found->second.shape[1]};
}

// Tensors vocabulary.projection [signature, kv_heads * head_dim_v], vocabulary.signatures [tokens,
// signature] and vocabulary.features [tokens, features]. Returns null where there are none.
absl::StatusOr<std::shared_ptr<const Vocabulary>> ReadVocabulary(const SafetensorsReader& file,
                                                                 const KvSpec& spec) {
  constexpr char kProjection[] = "vocabulary.projection", kSignatures[] = "vocabulary.signatures",
                 kFeatures[] = "vocabulary.features";
  std::shared_ptr<const Vocabulary> none;
  if (!file.tensors().contains(kFeatures)) return none;
  const auto [signature, v] = MatrixShape(file, kProjection);
  const auto [tokens, features] = MatrixShape(file, kFeatures);
  if (tokens > kMaxVocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": a vocabulary of ", tokens, " tokens"));
  }
  Vocabulary::Parts parts{.tokens = static_cast<uint32_t>(tokens)};
  KVSTOW_RETURN_IF_ERROR(Append(file, kProjection, {signature, v}, parts.projection));
  KVSTOW_RETURN_IF_ERROR(Append(file, kSignatures, {tokens, signature}, parts.signatures));
  KVSTOW_RETURN_IF_ERROR(Append(file, kFeatures, {tokens, features}, parts.features));
  return Vocabulary::Make(ShapeFor(spec, 1), parts);
}

// Tensors query_mean.L [heads, head_dim_k] of some layers. Returns null where there are none.
absl::StatusOr<std::shared_ptr<const QueryMeans>> ReadQueryMeans(const SafetensorsReader& file,
                                                                 const KvSpec& spec) {
  auto out = std::make_shared<QueryMeans>();
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string name = absl::StrCat("query_mean.", layer);
    if (!file.tensors().contains(name)) continue;
    if (out->layers.empty()) out->heads = static_cast<uint32_t>(MatrixShape(file, name).first);
    QueryMeans::Layer& of = out->layers.emplace_back(QueryMeans::Layer{.layer = layer});
    KVSTOW_RETURN_IF_ERROR(Append(file, name, {out->heads, spec.head_dim_k}, of.means));
  }
  return out->layers.empty() ? nullptr : out;
}

// Tensors metric_k.L and metric_v.L [kv_heads, d, d], gain_k and gain_v [layers, kv_heads], and
// optionally slope_k.L and slope_v.L [kv_heads, d], entropy, sensitivity [tokens of all cases in
// their order, layers], and those of ReadQueryMeans and ReadVocabulary.
absl::StatusOr<ModelStats> ReadTensors(const std::string& path, const KvSpec& spec) {
  ModelStats stats;
  KVSTOW_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::Open(path));
  const uint64_t heads = spec.kv_heads, k = spec.head_dim_k, v = spec.head_dim_v;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    KVSTOW_RETURN_IF_ERROR(
        Append(file, absl::StrCat("metric_k.", layer), {heads, k, k}, stats.metric_k));
    KVSTOW_RETURN_IF_ERROR(
        Append(file, absl::StrCat("metric_v.", layer), {heads, v, v}, stats.metric_v));
    if (!file.tensors().contains("slope_k.0")) continue;
    KVSTOW_RETURN_IF_ERROR(
        Append(file, absl::StrCat("slope_k.", layer), {heads, k}, stats.slope_k));
    KVSTOW_RETURN_IF_ERROR(
        Append(file, absl::StrCat("slope_v.", layer), {heads, v}, stats.slope_v));
  }
  if (file.tensors().contains("entropy")) {
    const uint64_t values = heads * (k + v) + 1;
    KVSTOW_RETURN_IF_ERROR(Append(file, "entropy", {values}, stats.entropy));
  }
  KVSTOW_RETURN_IF_ERROR(Append(file, "gain_k", {spec.layers, heads}, stats.gain_k));
  KVSTOW_RETURN_IF_ERROR(Append(file, "gain_v", {spec.layers, heads}, stats.gain_v));
  const auto sensitivity = file.tensors().find("sensitivity");
  if (sensitivity != file.tensors().end() && !sensitivity->second.shape.empty()) {
    KVSTOW_RETURN_IF_ERROR(Append(file, "sensitivity", {sensitivity->second.shape[0], spec.layers},
                                  stats.sensitivity));
  }
  KVSTOW_ASSIGN_OR_RETURN(stats.queries, ReadQueryMeans(file, spec));
  KVSTOW_ASSIGN_OR_RETURN(stats.vocabulary, ReadVocabulary(file, spec));
  return stats;
}

// A blob of statistics, or a file of tensors.
absl::StatusOr<ModelStats> ReadModelStats(const std::string& path, const KvSpec& spec) {
  if (path.empty()) return ModelStats();
  KVSTOW_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto blob = ParseModelStats(file.bytes(), spec);
  return absl::IsDataLoss(blob.status()) ? ReadTensors(path, spec) : blob;
}

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  KVSTOW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Create(path, bytes.size()));
  std::memcpy(file.writable().data(), bytes.data(), bytes.size());
  return file.Commit();
}

absl::StatusOr<Report> Fit(const Flags& flags, const Recipe& recipe) {
  const Time start = Clock::Real().Now();
  KVSTOW_ASSIGN_OR_RETURN(const auto codec_needs, CalibrationNeeds(recipe));
  const bool reads_queries = !codec_needs.has_value();
  KVSTOW_ASSIGN_OR_RETURN(const auto source,
                          flags.space.empty()
                              ? CasesAsSource(flags.cases, reads_queries)
                              : SpaceAsSource(flags.server, flags.space, flags.max_pages));
  const KvSpec& spec = source->spec();
  KVSTOW_ASSIGN_OR_RETURN(const ModelStats stats, ReadModelStats(flags.model_stats, spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto fit, StartCalibration(recipe, spec, stats));
  Report report;
  Progress progress("codec calibrate", fit->passes() * source->size(),
                    std::string(source->things()));
  for (int pass = 0; pass < fit->passes(); ++pass) {
    report.tokens = 0;
    const auto add = [&](const PageToEncode& page) {
      report.tokens += page.tokens;
      return fit->Add(page);
    };
    KVSTOW_RETURN_IF_ERROR(
        source->ForEach(add, [&](size_t done) { progress.Update(pass * source->size() + done); }));
    KVSTOW_RETURN_IF_ERROR(fit->EndPass());
  }
  KVSTOW_ASSIGN_OR_RETURN(std::string blob, fit->Finish());
  if (!stats.empty()) {  // for pages that ask for a divergence
    KVSTOW_ASSIGN_OR_RETURN(const CalibrationSection section,
                            StatsSection(ShapeFor(spec, 1), stats));
    KVSTOW_ASSIGN_OR_RETURN(blob, WithSection(AsBytes(blob), section));
  }
  KVSTOW_ASSIGN_OR_RETURN(report.calibration, ParseCalibration(AsBytes(blob)));
  KVSTOW_RETURN_IF_ERROR(WriteFile(flags.out, blob));
  report.things = std::string(source->things());
  report.count = source->size();
  report.bytes = blob.size();
  report.seconds = SecondsSince(start);
  return report;
}

absl::StatusOr<Recipe> CalibratedRecipe(const std::string& text) {
  KVSTOW_ASSIGN_OR_RETURN(Recipe recipe, ParseRecipe(text));
  KVSTOW_ASSIGN_OR_RETURN(const std::optional<CalibrationNeed> need, CalibrationNeeds(recipe));
  KVSTOW_ASSIGN_OR_RETURN(const std::optional<CalibrationNeed> queries, QueryNeeds(recipe));
  if (need.has_value() || queries.has_value()) return recipe;
  return absl::InvalidArgumentError(absl::StrCat("recipe '", text, "' needs no calibration"));
}

int Calibrate(const Flags& flags) {
  if (flags.space.empty() && flags.cases.empty()) {
    Fail(flags.output,
         absl::InvalidArgumentError(
             "name what to calibrate on: CASE files, or --space of a running server"));
    return kWrongUse;
  }
  const absl::StatusOr<Recipe> recipe = CalibratedRecipe(flags.recipe);
  if (!recipe.ok()) {
    Fail(flags.output, recipe.status());
    return kWrongUse;
  }
  const absl::StatusOr<Report> report = Fit(flags, *recipe);
  if (!report.ok()) return Fail(flags.output, report.status());
  const CalibrationShape& shape = report->calibration->shape();
  const uint64_t values =
      uint64_t{shape.layers} * shape.kv_heads * (shape.head_dim_k + shape.head_dim_v);
  uint64_t components = 0;  // 0 = not a joint transform
  for (const CalibratedRun& run : report->calibration->runs()) components += run.rank();
  const std::string id = HexOf(report->calibration->id());
  Print(flags.output,
        {{"calibration", id},
         {"out", flags.out},
         {"bytes", report->bytes},
         {report->things, report->count},
         {"tokens", report->tokens},
         {"layers_per_run", shape.layers_per_run},
         {"components", components},
         {"values_per_token", values},
         {"seconds", report->seconds}},
        FormatFields(
            {{"calibration", id},
             {"written to", absl::StrCat(flags.out, ", ", report->bytes, " bytes")},
             {"made from",
              absl::StrCat(report->count, " ", report->things, ", ", report->tokens, " tokens")},
             {"components",
              components == 0 ? "-" : absl::StrCat(components, " of ", values, " values a token")},
             {"time", absl::StrCat(FormatFixed(report->seconds, 1), " s")}}));
  return kDone;
}

}  // namespace

void AddCodecCalibrate(const Verb& codec) {
  const Verb verb = codec.Add(
      "calibrate",
      "Fit the calibration of a recipe to text like what will be stored: to cases, or to the pages "
      "of a space");
  const auto flags = std::make_shared<Flags>();
  AddOutputFlags(verb, flags->output);
  verb.Option("--recipe", flags->recipe,
              "the recipe; its `run` and its `step`, the finest that is meant to be used, "
              "shape the calibration")
      .Required();
  verb.Option("--out", flags->out, "file to write the calibration to").Required();
  verb.Option(
      "--model-stats", flags->model_stats,
      "what the model feels: a file of `kvstow-calibrate --statistics`; or a safetensors "
      "file with metric_k.L, metric_v.L, gain_k, gain_v, and optionally slope_k.L, "
      "slope_v.L, query_mean.L and sensitivity of the cases' tokens in their order; without "
      "it the keys say which heads and which tokens count more");
  AddServerFlags(verb, flags->server);
  const Flag space =
      verb.Option("--space", flags->space,
                  "calibrate on pages of this space of a running server, not on cases");
  verb.Option("--max-pages", flags->max_pages,
              "so many of them at most, spread over all that the space has")
      .Within(1u, 16384u)
      .Needs(space)
      .ShowDefault();
  verb.Option("CASE", flags->cases,
              "safetensors files with k.L, v.L and tokens, and with q.L for a policy that reads "
              "statistics of queries")
      .Excludes(space);
  verb.Footer(
      "Examples:\n"
      "  kvstow codec calibrate --recipe 'kvstow-cal(run=10)' --out model.kvcal prose*.safetensors "
      "code*.safetensors\n"
      "  kvstow codec calibrate --recipe expected-attention --out queries.kvcal "
      "prose*.safetensors\n"
      "  kvstow codec calibrate --recipe kvstow-cal --out model.kvcal --space smollm2\n"
      "  kvstow codec calibrate --recipe kvstow-cal --out model.kvcal --model-stats model.kvstats "
      "prose*.safetensors");
  verb.Run([flags] { return Calibrate(*flags); });
}

}  // namespace kvstow::cli
