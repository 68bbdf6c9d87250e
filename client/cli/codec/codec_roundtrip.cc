// kvstow codec roundtrip: what a recipe does to a case, without a server.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/case/case_attention.h"
#include "client/case/mapped_file.h"
#include "client/cli/calibration_files.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/ops.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/importance/policy.h"
#include "kernels/page/convert.h"
#include "kernels/page/squared_error.h"
#include "kernels/recipe/recipe.h"

namespace kvstow::cli {
namespace {

// What --attention puts before a recipe without a policy: a token is coded the finer the more
// attention it got.
constexpr absl::string_view kSumPolicy = "column(name=attn_sum,seen=16)|class|";
constexpr absl::string_view kWindowPolicy = "column(name=attn_window)|class|";

struct Flags {
  OutputFlags output;
  std::string recipe, path, out;
  std::vector<std::string> calibrations;
  uint32_t page_tokens = 256;
  uint32_t max_levels = 0;
  std::optional<double> target_ratio, max_error, keep;
  std::string attention_column = "none";   // or sum, window
  std::optional<CaseAttention> attention;  // of the case, when the recipe asks for importance
};

// Of K or of V, over all pages: the relative error is the square root of their quotient.
struct SquaredErrors {
  double error = 0, energy = 0;

  double Relative() const {
    if (error == 0) return 0;
    return energy > 0 ? std::sqrt(error / energy) : INFINITY;
  }
};

// One level of all pages, summed up. The header counts with the base.
struct Level {
  double bytes = 0, gain = 0;
};

struct Report {
  std::string pipeline;
  uint64_t pages = 0, raw_bytes = 0, stored_bytes = 0, fell_back = 0;
  double encode_s = 0, decode_s = 0;
  SquaredErrors k, v;
  std::vector<Level> levels;
};

// NaN and Inf in the case make the errors NaN: there is no distance between them.
void Compare(const CasePages& pages, size_t page, std::span<const uint8_t> raw,
             std::span<const uint8_t> decoded, Report& report) {
  const KvSpec& spec = pages.spec;
  const uint32_t tokens = pages.Count(page);
  std::vector<float> x, y;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    for (const Part part : {Part::kK, Part::kV}) {
      x.resize(SlabValues(spec, part, tokens));
      y.resize(x.size());
      const size_t offset = SlabOffset(spec, layer, part, tokens);
      SquaredErrors& errors = part == Part::kK ? report.k : report.v;
      if (!LoadFloats(spec.dtype, raw.data() + offset, x.size(), x.data()) ||
          !LoadFloats(spec.dtype, decoded.data() + offset, y.size(), y.data())) {
        errors.error = NAN;
        continue;
      }
      errors.error += SquaredError(x.data(), y.data(), x.size());
      errors.energy += SquaredSum(x.data(), x.size());
    }
  }
}

absl::Status RoundtripPage(const Codec& codec, const CalibrationStore& calibrations,
                           const CasePages& pages, size_t page, const Flags& flags,
                           std::span<uint8_t> decoded, std::optional<Selection>& kept_tokens,
                           Report& report) {
  std::vector<uint8_t> raw(pages.Bytes(page));
  pages.file.ReadPage(pages.First(page), pages.Count(page), raw);
  AttentionColumns columns;
  if (flags.attention.has_value()) {
    columns = flags.attention->Page(pages.First(page), pages.Count(page));
  }
  Time start = Clock::Real().Now();
  KVSTOW_ASSIGN_OR_RETURN(
      const EncodedPage encoded,
      codec.Encode(
          {.raw = raw,
           .tokens = pages.Count(page),
           .first_position = pages.First(page),
           .key = pages.keys[page],
           .columns = &columns,
           .queries = flags.attention.has_value() ? flags.attention->queries() : nullptr}));
  report.encode_s += SecondsSince(start);
  const size_t kept = SegmentsForLevels(encoded.header, flags.max_levels);
  const std::span<const SharedBytes> segments(encoded.segments.data(), kept);
  start = Clock::Real().Now();
  KVSTOW_RETURN_IF_ERROR(DecodePage(encoded.header, segments, decoded, calibrations));
  report.decode_s += SecondsSince(start);
  const std::vector<std::optional<SharedBytes>> all(segments.begin(), segments.end());
  KVSTOW_ASSIGN_OR_RETURN(kept_tokens, KeptTokens(encoded.header, all));
  ++report.pages;
  report.raw_bytes += raw.size();
  report.stored_bytes += encoded.header_bytes.size();
  for (const SharedBytes& s : segments) report.stored_bytes += s.size();
  report.fell_back += encoded.header.fell_back ? 1 : 0;
  for (const SegmentInfo& segment : std::span(encoded.header.segments).first(kept)) {
    report.levels.resize(std::max<size_t>(report.levels.size(), segment.level + 1));
    report.levels[segment.level].bytes += segment.bytes;
    report.levels[segment.level].gain += segment.gain;
  }
  report.levels[0].bytes += static_cast<double>(encoded.header_bytes.size());
  Compare(pages, page, raw, decoded, report);
  return absl::OkStatus();
}

// The recipe with --attention. One with a policy of its own must read that column, and stays as it
// is.
absl::StatusOr<Recipe> WithAttention(const Recipe& recipe, const Flags& flags) {
  const std::string column = absl::StrCat("attn_", flags.attention_column);
  if (!recipe.policy_ops().empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto policy, ImportancePolicy::Make(recipe.policy_ops()));
    if (std::ranges::count(policy.columns(), column) > 0) return recipe;
    return absl::InvalidArgumentError(absl::StrCat(
        "--attention ", flags.attention_column, ": the policy of '", flags.recipe, "' reads ",
        absl::StrJoin(policy.columns(), ", "), " and not ", column, ": leave the flag out"));
  }
  const absl::string_view policy = flags.attention_column == "sum" ? kSumPolicy : kWindowPolicy;
  const OpInfo* const codec = FindOp(recipe.codec_ops().back().name);
  if (codec != nullptr && codec->make_classed != nullptr) {
    return ParseRecipe(absl::StrCat(policy, flags.recipe));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--attention ", flags.attention_column, ": '", flags.recipe,
                   "' codes all tokens alike; the flag is for kvstow, kvstow-cal and recipes whose "
                   "policy reads ",
                   column, ", as h2o"));
}

// The recipe as the flags change it.
absl::StatusOr<std::shared_ptr<const Codec>> CodecFor(const Flags& flags, const KvSpec& spec,
                                                      const CalibrationStore& calibrations) {
  KVSTOW_ASSIGN_OR_RETURN(Recipe recipe, ParseRecipe(flags.recipe));
  if (flags.attention_column != "none") {
    KVSTOW_ASSIGN_OR_RETURN(recipe, WithAttention(recipe, flags));
  }
  if (flags.keep.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(recipe, WithKeep(recipe, *flags.keep));
  }
  if (flags.target_ratio.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(recipe, WithTarget(recipe, "ratio", *flags.target_ratio));
  }
  if (flags.max_error.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(recipe, WithTarget(recipe, "error", *flags.max_error));
  }
  return MakeCodec(recipe, spec, calibrations);
}

absl::StatusOr<CaseAttention> ReadAttention(const Flags& flags, const CaseFile& file) {
  KVSTOW_ASSIGN_OR_RETURN(CaseAttention attention, CaseAttention::Read(file));
  if (flags.attention_column != "none") {
    KVSTOW_RETURN_IF_ERROR(attention.Need(absl::StrCat("attn_", flags.attention_column)));
  }
  return attention;
}

absl::StatusOr<Report> RoundtripPages(const Flags& flags, const Codec& codec,
                                      const CalibrationStore& calibrations,
                                      const CasePages& pages) {
  Report report;
  report.pipeline = codec.recipe().pipeline();
  std::vector<std::vector<uint8_t>> raw(pages.keys.size());
  std::vector<std::optional<Selection>> kept(pages.keys.size());
  std::vector<DecodedPage> decoded;
  Progress progress("codec roundtrip", PageBytes(pages.spec, 1) * pages.tokens());
  for (size_t page = 0; page < pages.keys.size(); ++page) {
    raw[page].resize(pages.Bytes(page));
    KVSTOW_RETURN_IF_ERROR(
        RoundtripPage(codec, calibrations, pages, page, flags, raw[page], kept[page], report));
    decoded.push_back({pages.First(page), pages.Count(page), raw[page],
                       kept[page].has_value() ? &*kept[page] : nullptr});
    progress.Update(report.raw_bytes);
  }
  KVSTOW_RETURN_IF_ERROR(WriteDecoded(flags.out, pages.file, decoded, report.stored_bytes));
  return report;
}

// "BITS:GAIN" of each level, as `kvstow simulate --levels` reads it: bits a value, and the share of
// the energy that is no error any longer.
std::string LevelsOf(const Report& report, const CasePages& pages) {
  const KvSpec& spec = pages.spec;
  double slabs = 0, values = 0;
  for (size_t page = 0; page < pages.keys.size(); ++page) {
    slabs += 2.0 * spec.layers * pages.Count(page);
    for (const Part part : {Part::kK, Part::kV}) {
      values += static_cast<double>(spec.layers * SlabValues(spec, part, pages.Count(page)));
    }
  }
  std::vector<std::string> levels;
  for (const Level& level : report.levels) {
    levels.push_back(absl::StrCat(FormatFixed(8 * level.bytes / values, 4), ":",
                                  FormatFixed(level.gain / slabs, 5)));
  }
  return absl::StrJoin(levels, ",");
}

int Roundtrip(Flags flags) {
  absl::StatusOr<CaseFile> file = CaseFile::Open(flags.path);
  if (!file.ok()) return Fail(flags.output, file.status());
  const CasePages pages = CutCase(*std::move(file), flags.page_tokens);
  CalibrationStore calibrations;
  const absl::Status loaded = LoadCalibrations(flags.calibrations, calibrations);
  if (!loaded.ok()) return Fail(flags.output, loaded);
  const absl::StatusOr<std::shared_ptr<const Codec>> codec =
      CodecFor(flags, pages.spec, calibrations);
  if (!codec.ok()) {
    Fail(flags.output, codec.status());
    return kWrongUse;
  }
  if (!(*codec)->recipe().policy_ops().empty()) {
    absl::StatusOr<CaseAttention> attention = ReadAttention(flags, pages.file);
    if (!attention.ok()) return Fail(flags.output, attention.status());
    flags.attention = *std::move(attention);
  }
  const absl::StatusOr<Report> report = RoundtripPages(flags, **codec, calibrations, pages);
  if (!report.ok()) return Fail(flags.output, report.status());
  const double encode = GigabytesPerSecond(report->raw_bytes, report->encode_s);
  const double decode = GigabytesPerSecond(report->raw_bytes, report->decode_s);
  const auto way = [](double seconds, double gbps) {
    return absl::StrCat(FormatFixed(seconds, 3), " s, ", FormatFixed(gbps, 2), " GB/s");
  };
  Print(flags.output,
        {{"recipe", flags.recipe},
         {"pipeline", report->pipeline},
         {"pages", report->pages},
         {"raw_bytes", report->raw_bytes},
         {"stored_bytes", report->stored_bytes},
         {"ratio",
          static_cast<double>(report->raw_bytes) / static_cast<double>(report->stored_bytes)},
         {"fell_back", report->fell_back},
         {"levels", LevelsOf(*report, pages)},
         {"k_error", report->k.Relative()},
         {"v_error", report->v.Relative()},
         {"encode_seconds", report->encode_s},
         {"encode_gbps", encode},
         {"decode_seconds", report->decode_s},
         {"decode_gbps", decode}},
        FormatFields(
            {{"recipe", report->pipeline},
             {"pages", absl::StrCat(report->pages)},
             {"raw", absl::StrCat(report->raw_bytes, " bytes")},
             {"stored", absl::StrCat(report->stored_bytes, " bytes, ",
                                     FormatRatio(report->raw_bytes, report->stored_bytes))},
             {"levels", LevelsOf(*report, pages)},
             {"error", absl::StrCat("K ", FormatFixed(report->k.Relative(), 5), ", V ",
                                    FormatFixed(report->v.Relative(), 5), " (|x' - x| / |x|)")},
             {"encode", way(report->encode_s, encode)},
             {"decode", way(report->decode_s, decode)}}));
  return kDone;
}

}  // namespace

void AddCodecRoundtrip(const Verb& codec) {
  const Verb verb =
      codec.Add("roundtrip", "Encode and decode a case without a server: size, error and speed");
  const auto flags = std::make_shared<Flags>();
  AddOutputFlags(verb, flags->output);
  verb.Option("--recipe", flags->recipe, "preset or pipeline, see `kvstow codec list`").Required();
  verb.Option("--page-tokens", flags->page_tokens, "tokens of a page")
      .Within(1u, kMaxPageTokens)
      .ShowDefault();
  AddCalibrationFlag(verb, flags->calibrations);
  verb.Option("--max-levels", flags->max_levels, "keep at most so many levels; 0 = all")
      .ShowDefault();
  const Flag ratio =
      verb.Option("--target-ratio", flags->target_ratio,
                  "raw over stored bytes of each page, in place of the recipe's step")
          .Within(1.0, 1000.0);
  verb.Option("--max-error", flags->max_error,
              "squared error over energy of each page, in place of the recipe's step")
      .Within(1e-6, 0.9)
      .Excludes(ratio);
  verb.Option("--keep", flags->keep, "share of the tokens that the recipe's policy keeps")
      .Within(0.0, 1.0);
  verb.Option("--attention", flags->attention_column,
              "code tokens the finer the more attention the case says they got: none, sum (of "
              "all queries), window (of the last 32); for kvstow and kvstow-cal. "
              "A recipe whose policy reads that column, as h2o, needs no flag")
      .OneOf({"none", "sum", "window"})
      .ShowDefault();
  verb.Option("CASE", flags->path, "safetensors file with k.L, v.L and tokens").Required();
  verb.Option("OUT", flags->out, "safetensors file to write the decoded k.L and v.L to").Required();
  verb.Footer(
      "Examples:\n"
      "  kvstow codec roundtrip --recipe int8 prompt.safetensors decoded.safetensors\n"
      "  kvstow codec roundtrip --recipe 'affine(bits=4,group=64)' prompt.safetensors "
      "decoded.safetensors\n"
      "  kvstow codec roundtrip --recipe 'snapkv(keep=0.25)|int8' prompt.safetensors "
      "decoded.safetensors\n"
      "  kvstow codec roundtrip --recipe 'kvstow-cal(run=10)' --attention sum --target-ratio 30 "
      "--calibration model.kvcal prompt.safetensors decoded.safetensors");
  verb.Run([flags] { return Roundtrip(*flags); });
}

}  // namespace kvstow::cli
