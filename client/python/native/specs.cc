#include "client/python/native/specs.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/calibration/query_means.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/rate_codec.h"

namespace kvstow::python {
namespace {

namespace nb = nanobind;

template <class T>
T Field(nb::handle object, const char* name) {
  const nb::object field = object.attr(name);
  T value;
  if (nb::try_cast<T>(field, value)) return value;
  PyErr_Clear();
  throw nb::value_error(
      absl::StrCat(name, ": ", nb::repr(field).c_str(), " is not what this field holds").c_str());
}

template <class T>
using Names = std::span<const std::pair<const char*, T>>;

template <class T>
T Named(const char* what, const std::string& name, Names<T> names) {
  std::vector<std::string> known;
  for (const auto& [text, value] : names) {
    if (name == text) return value;
    known.push_back(absl::StrCat("'", text, "'"));
  }
  throw nb::value_error(
      absl::StrCat(what, ": '", name, "' is not one of ", absl::StrJoin(known, ", ")).c_str());
}

template <class T>
std::string NameOf(T value, Names<T> names) {
  for (const auto& [text, known] : names) {
    if (known == value) return text;
  }
  return "";
}

constexpr std::pair<const char*, RopeSpec::Layout> kLayouts[] = {
    {"none", RopeSpec::Layout::kNone},
    {"half", RopeSpec::Layout::kHalf},
    {"interleaved", RopeSpec::Layout::kInterleaved}};
constexpr std::pair<const char*, RopeSpec::Scaling> kScalings[] = {
    {"none", RopeSpec::Scaling::kNone},     {"linear", RopeSpec::Scaling::kLinear},
    {"ntk", RopeSpec::Scaling::kNtk},       {"yarn", RopeSpec::Scaling::kYarn},
    {"llama3", RopeSpec::Scaling::kLlama3}, {"longrope", RopeSpec::Scaling::kLongRope}};
constexpr std::pair<const char*, DType> kDtypes[] = {{"float16", DType::kF16},
                                                     {"bfloat16", DType::kBF16},
                                                     {"float32", DType::kF32},
                                                     {"float8_e4m3fn", DType::kF8E4M3},
                                                     {"float8_e5m2", DType::kF8E5M2}};
constexpr std::pair<const char*, Payload> kPayloads[] = {
    {"raw", Payload::kRaw}, {"encoded", Payload::kEncoded}, {"auto", Payload::kAuto}};
constexpr std::pair<const char*, Fidelity> kFidelities[] = {{"", Fidelity::kUnspecified},
                                                            {"exact", Fidelity::kExact},
                                                            {"dense", Fidelity::kDense},
                                                            {"sparse", Fidelity::kSparse}};
constexpr std::pair<const char*, AckLevel> kAcks[] = {{"default", AckLevel::kDefault},
                                                      {"memory", AckLevel::kMemory},
                                                      {"process", AckLevel::kProcess},
                                                      {"durable", AckLevel::kDurable}};

RopeSpec RopeOf(nb::handle rope, RopeDetails& details) {
  details = {.attention_factor = Field<double>(rope, "attention_factor"),
             .mscale = Field<double>(rope, "mscale"),
             .mscale_all_dim = Field<double>(rope, "mscale_all_dim"),
             .short_factors = Field<std::vector<double>>(rope, "short_factors"),
             .long_factors = Field<std::vector<double>>(rope, "long_factors"),
             .mrope_sections = Field<std::vector<uint32_t>>(rope, "mrope_sections")};
  return {.layout = Named("rope.layout", Field<std::string>(rope, "layout"),
                          Names<RopeSpec::Layout>(kLayouts)),
          .scaling = Named("rope.scaling", Field<std::string>(rope, "scaling"),
                           Names<RopeSpec::Scaling>(kScalings)),
          .k_after_rope = Field<bool>(rope, "k_after_rope"),
          .rotary_dims = Field<uint32_t>(rope, "rotary_dims"),
          .theta = Field<double>(rope, "theta"),
          .factor = Field<double>(rope, "factor"),
          .low_freq_factor = Field<double>(rope, "low_freq_factor"),
          .high_freq_factor = Field<double>(rope, "high_freq_factor"),
          .original_context = Field<uint32_t>(rope, "original_context")};
}

nb::dict RopeDict(const RopeSpec& rope, const RopeDetails& details) {
  nb::dict out;
  out["layout"] = NameOf(rope.layout, Names<RopeSpec::Layout>(kLayouts));
  out["scaling"] = NameOf(rope.scaling, Names<RopeSpec::Scaling>(kScalings));
  out["k_after_rope"] = rope.k_after_rope;
  out["rotary_dims"] = rope.rotary_dims;
  out["theta"] = rope.theta;
  out["factor"] = rope.factor;
  out["low_freq_factor"] = rope.low_freq_factor;
  out["high_freq_factor"] = rope.high_freq_factor;
  out["original_context"] = rope.original_context;
  out["attention_factor"] = details.attention_factor;
  out["mscale"] = details.mscale;
  out["mscale_all_dim"] = details.mscale_all_dim;
  out["short_factors"] = nb::tuple(nb::cast(details.short_factors));
  out["long_factors"] = nb::tuple(nb::cast(details.long_factors));
  out["mrope_sections"] = nb::tuple(nb::cast(details.mrope_sections));
  return out;
}

}  // namespace

KvSpec SpecOf(nb::handle spec) {
  KvSpec out = {.model = Field<std::string>(spec, "model"),
                .revision = Field<std::string>(spec, "revision"),
                .layers = Field<uint32_t>(spec, "layers"),
                .kv_heads = Field<uint32_t>(spec, "kv_heads"),
                .head_dim_k = Field<uint32_t>(spec, "head_dim"),
                .dtype = Named("dtype", Field<std::string>(spec, "dtype"), Names<DType>(kDtypes)),
                .page_tokens = Field<uint32_t>(spec, "page_tokens"),
                .rank = Field<uint32_t>(spec, "rank"),
                .world_size = Field<uint32_t>(spec, "world_size"),
                .engine = Field<std::string>(spec, "engine"),
                .weight_quantization = Field<std::string>(spec, "weight_quantization"),
                .adapter = Field<std::string>(spec, "adapter"),
                .kv_scales = Field<std::string>(spec, "kv_scales"),
                .sliding_window = Field<uint32_t>(spec, "sliding_window"),
                .layer_layout = Field<std::string>(spec, "layer_layout")};
  const nb::object head_dim_v = spec.attr("head_dim_v");
  out.head_dim_v = head_dim_v.is_none() ? out.head_dim_k : Field<uint32_t>(spec, "head_dim_v");
  out.rope = RopeOf(spec.attr("rope"), out.rope_details);
  if (const nb::object other = spec.attr("other_rope"); !other.is_none()) {
    RopeDetails details;
    out.other_rope = {RopeOf(other, details),
                      Field<std::vector<uint32_t>>(spec, "other_rope_layers")};
    if (details != RopeDetails()) {
      throw nb::value_error(
          "other_rope: attention_factor and the fields behind it must be left out: write them into "
          "layer_layout");
    }
  }
  if (const absl::Status valid = Validate(out); !valid.ok()) {
    throw nb::value_error(std::string(valid.message()).c_str());
  }
  return out;
}

nb::dict SpecDict(const KvSpec& spec) {
  nb::dict out;
  out["model"] = spec.model;
  out["revision"] = spec.revision;
  out["layers"] = spec.layers;
  out["kv_heads"] = spec.kv_heads;
  out["head_dim"] = spec.head_dim_k;
  out["head_dim_v"] =
      spec.head_dim_v == spec.head_dim_k ? nb::none() : nb::object(nb::int_(spec.head_dim_v));
  out["dtype"] = NameOf(spec.dtype, Names<DType>(kDtypes));
  out["page_tokens"] = spec.page_tokens;
  out["rank"] = spec.rank;
  out["world_size"] = spec.world_size;
  out["rope"] = RopeDict(spec.rope, spec.rope_details);
  out["engine"] = spec.engine;
  out["weight_quantization"] = spec.weight_quantization;
  out["adapter"] = spec.adapter;
  out["kv_scales"] = spec.kv_scales;
  out["sliding_window"] = spec.sliding_window;
  out["layer_layout"] = spec.layer_layout;
  const OtherRope& other = spec.other_rope;
  out["other_rope"] =
      other.layers.empty() ? nb::none() : nb::object(RopeDict(other.rope, RopeDetails()));
  out["other_rope_layers"] = nb::tuple(nb::cast(other.layers));
  return out;
}

std::span<const uint8_t> BytesOf(const nb::bytes& bytes) {
  return {static_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

nb::bytes StatisticsBlob(const KvSpec& spec, const std::map<uint32_t, nb::bytes>& queries,
                         const nb::bytes& metric_k, const nb::bytes& gain_k,
                         const nb::bytes& metric_v, const nb::bytes& gain_v,
                         const nb::bytes& slope_k, const nb::bytes& slope_v,
                         const nb::bytes& entropy) {
  const auto floats = [](const nb::bytes& bytes) {
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
    return out;
  };
  ModelStats stats{.metric_k = floats(metric_k),
                   .metric_v = floats(metric_v),
                   .gain_k = floats(gain_k),
                   .gain_v = floats(gain_v),
                   .slope_k = floats(slope_k),
                   .slope_v = floats(slope_v),
                   .entropy = floats(entropy),
                   .sensitivity = {}};
  if (!queries.empty()) {
    auto means = std::make_shared<QueryMeans>();
    for (const auto& [layer, mean] : queries) means->layers.push_back({layer, floats(mean)});
    means->heads = static_cast<uint32_t>(means->layers[0].means.size() / spec.head_dim_k);
    stats.queries = std::move(means);
  }
  const auto blob = StatsCalibration(spec, stats);
  if (!blob.ok()) throw nb::value_error(std::string(blob.status().message()).c_str());
  return nb::bytes(blob->data(), blob->size());
}

nb::bytes RankStatisticsBlob(const nb::bytes& statistics, const KvSpec& spec, uint32_t first_layer,
                             uint32_t tensor_rank, uint32_t tensor_size) {
  const auto refuse = [](const absl::Status& status) {
    return nb::value_error(std::string(status.message()).c_str());
  };
  const auto whole = ParseCalibration(BytesOf(statistics));
  if (!whole.ok()) throw refuse(whole.status());
  const std::optional<ModelStats> stats = ModelStatsOf(**whole);
  if (!stats.has_value()) throw nb::value_error("the blob has no statistics of a model");
  const RankOfModel rank = {first_layer, tensor_rank, tensor_size};
  const auto blob = StatsOfRank((*whole)->shape(), *stats, spec, rank);
  if (!blob.ok()) throw refuse(blob.status());
  return nb::bytes(blob->data(), blob->size());
}

nb::bytes ScaledCostsBlob(const nb::bytes& calibration, double factor, double power) {
  const auto blob = WithScaledCosts(BytesOf(calibration), factor, power);
  if (!blob.ok()) throw nb::value_error(std::string(blob.status().message()).c_str());
  return nb::bytes(blob->data(), blob->size());
}

std::string RecipeWithDivergence(const std::string& recipe, double divergence) {
  auto changed = ParseRecipe(recipe);
  if (changed.ok()) changed = WithTarget(*changed, "divergence", divergence);
  if (!changed.ok()) throw nb::value_error(std::string(changed.status().message()).c_str());
  return changed->pipeline();
}

nb::dict SpaceDict(const SpaceInfo& space) {
  nb::dict out;
  out["name"] = space.name;
  out["recipe"] = space.recipe;
  out["pipeline"] = space.pipeline;
  out["fingerprint"] = nb::bytes(space.fingerprint.data(), space.fingerprint.size());
  out["spec"] = SpecDict(space.spec);
  out["fidelity"] = NameOf(space.fidelity, Names<Fidelity>(kFidelities));
  out["private"] = space.is_private;
  out["created"] = space.created;
  out["wants_statistics"] = space.wants_statistics;
  out["levels"] = space.levels;
  out["layers_per_run"] = space.layers_per_run;
  return out;
}

Payload PayloadOf(const std::string& name) {
  return Named("payload", name, Names<Payload>(kPayloads));
}
Fidelity FidelityOf(const std::string& name) {
  return Named("fidelity", name, Names<Fidelity>(kFidelities));
}
AckLevel AckOf(const std::string& name) { return Named("ack", name, Names<AckLevel>(kAcks)); }

PageColumn ColumnOf(nb::handle column) {
  const auto scores = Field<nb::bytes>(column, "_scores");
  const auto* first = static_cast<const uint8_t*>(scores.data());
  return {.name = Field<std::string>(column, "name"),
          .queries = Field<uint64_t>(column, "queries"),
          .context = Field<uint64_t>(column, "context"),
          .scores = {first, first + scores.size()}};
}

}  // namespace kvstow::python
