// kvstow plan: what a model's KV cache takes, and what it pays to keep.
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/cli.h"
#include "client/cli/connection_flags.h"
#include "client/cli/plan/plan_fleet.h"
#include "client/cli/plan/plan_report.h"
#include "client/cli/plan/plan_server.h"
#include "client/cli/plan_flags.h"
#include "client/cli/text.h"
#include "client/planner/profile.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server{.server = ""};
  std::string model, kv_dtype;
  uint32_t ranks = 1;
  uint32_t page_tokens = 256;
  std::vector<std::string> recipes = {"raw", "int8"};
  std::vector<std::string> roundtrips;
  std::string trace, profile, plot;
  std::vector<uint64_t> sizes;
  planner::Hardware hardware;
  planner::Fleet fleet;
  uint32_t prompt_tokens = 0;
  double target_hit_percent = 0, target_ttft_ms = 0;
};

absl::StatusOr<PlanReport> SizesOf(const Flags& flags) {
  PlanReport out;
  KVSTOW_ASSIGN_OR_RETURN(out.model, planner::LoadModel(flags.model, flags.kv_dtype));
  KVSTOW_ASSIGN_OR_RETURN(out.rank, planner::DivideOverRanks(out.model, flags.ranks));
  KVSTOW_ASSIGN_OR_RETURN(const KvSpec spec,
                          planner::SpecOfRank(out.model, out.rank, flags.page_tokens));
  for (const std::string& text : flags.recipes) {
    KVSTOW_ASSIGN_OR_RETURN(planner::RecipeSize size, planner::SizeOfRecipe(text, spec));
    out.recipes.push_back(std::move(size));
  }
  for (const std::string& file : flags.roundtrips) {
    KVSTOW_RETURN_IF_ERROR(planner::AddRoundtrips(file, out.recipes));
  }
  return out;
}

absl::StatusOr<Trace> TraceOf(const Flags& flags) {
  if (!flags.profile.empty()) return planner::TraceOfProfile(flags.profile);
  Progress progress("reading the trace", 0);
  return LoadTrace(flags.trace, [&](uint64_t read, uint64_t) { progress.Update(read); });
}

absl::Status AddLoad(const Flags& flags, const Trace& trace, PlanReport& report) {
  report.load = planner::MeasureLoad(trace);
  report.load_name = flags.trace.empty() ? flags.profile : flags.trace;
  report.load_origin = flags.trace.empty() ? planner::Origin::kGiven : planner::Origin::kMeasured;
  report.curves =
      planner::CurvesOf(*report.load, report.rank.all_bytes_per_token, report.recipes, flags.sizes);
  if (flags.plot.empty()) return absl::OkStatus();
  std::ofstream out(flags.plot);
  out << planner::CurvesSvg(report.curves, absl::StrCat(report.model.name, ", ", report.load_name));
  out.close();
  if (!out) return absl::UnavailableError(absl::StrCat(flags.plot, ": cannot be written"));
  return absl::OkStatus();
}

absl::Status AddOutcomes(const Flags& flags, PlanReport& report) {
  report.hardware = flags.hardware;
  report.prompt_tokens = flags.prompt_tokens;
  report.goal = {flags.target_hit_percent / 100, flags.target_ttft_ms / 1000};
  const bool goal = report.goal.hit_rate > 0 || report.goal.first_token_s > 0;
  if (!report.load.has_value()) {
    const bool tiers = report.hardware.bytes() > 0 && report.prompt_tokens == 0;
    if (!goal && !tiers && flags.sizes.empty() && flags.plot.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "targets, --size, --plot, and tiers without --prompt need a load: --trace or --profile");
  }
  const uint64_t raw = report.rank.all_bytes_per_token;
  if (report.hardware.bytes() > 0) {
    for (const planner::RecipeSize& recipe : report.recipes) {
      report.outcomes.push_back(planner::Predict(*report.load, raw, recipe, report.hardware));
    }
  }
  const auto& tiers = report.hardware.tiers;
  const bool prices = tiers[planner::Hardware::kRam].price_per_gib > 0 ||
                      tiers[planner::Hardware::kDisk].price_per_gib > 0;
  report.advised = goal && (prices || report.goal.first_token_s > 0);
  if (!report.advised) return absl::OkStatus();
  KVSTOW_ASSIGN_OR_RETURN(report.advice, planner::Advise(*report.load, raw, report.recipes,
                                                         report.hardware, report.goal));
  return absl::OkStatus();
}

absl::StatusOr<PlanReport> MakeReport(const Flags& flags) {
  KVSTOW_ASSIGN_OR_RETURN(PlanReport report, SizesOf(flags));
  std::optional<Trace> trace;
  if (!flags.trace.empty() || !flags.profile.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(trace, TraceOf(flags));
    KVSTOW_RETURN_IF_ERROR(AddLoad(flags, *trace, report));
  }
  KVSTOW_RETURN_IF_ERROR(AddOutcomes(flags, report));
  report.fleet = flags.fleet;
  KVSTOW_RETURN_IF_ERROR(AddFleet(trace.has_value() ? &*trace : nullptr, report));
  return report;
}

int Plan(Flags flags, bool recipes_given) {
  if (!flags.server.server.empty()) {
    if (!recipes_given) flags.recipes.clear();
    return PlanServer(flags.output, flags.server, flags.recipes, flags.roundtrips, flags.sizes);
  }
  if (!recipes_given && !flags.roundtrips.empty()) flags.recipes = {"raw"};
  if (flags.model.empty()) RefuseAbsent("--model or --server");
  const absl::StatusOr<PlanReport> report = MakeReport(flags);
  if (!report.ok()) return Fail(flags.output, report.status());
  Print(flags.output, PlanJson(*report), PlanText(*report));
  return kDone;
}

// Adds the flags of the hardware and of what is asked of it. A plan of a server has none of them.
void AddHardware(const Verb& verb, Flags& flags, const Flag& server) {
  planner::Hardware& h = flags.hardware;
  for (size_t t = 0; t < planner::Hardware::kTiers; ++t) {
    const std::string tier = absl::StrCat("--", planner::TierName(t));
    AddSize(verb, tier, h.tiers[t].bytes, "size of the tier, as 512GiB").Excludes(server);
    AddBandwidth(verb, tier + "-bandwidth", h.tiers[t].bytes_per_s, "what it reads, as 3GB/s")
        .Excludes(server);
    AddNumber(verb, tier + "-price", h.tiers[t].price_per_gib, 1e-9, 1e9,
              "of a GiB, in any currency")
        .Excludes(server);
  }
  AddBandwidth(verb, "--link", h.link_bytes_per_s, "from kvstowd to the worker, as 25Gbit/s")
      .Excludes(server);
  AddBandwidth(verb, "--decode-speed", h.decode_bytes_per_s,
               "raw bytes that a decoder gives whose speed is not told with its recipe")
      .Excludes(server);
  AddNumber(verb, "--prefill-tps", h.prefill_tokens_per_s, 1e-3, 1e12,
            "tokens a second that the worker computes")
      .Excludes(server);
  AddSize(verb, "--disk-life", h.disk_life_bytes,
          "bytes that may be written to the disk, as 7000TB")
      .Excludes(server);
  AddNumber(verb, "--write-amplification", h.write_amplification, 1, 1000,
            "bytes written to the disk for one stored")
      .ShowDefault()
      .Excludes(server);
  verb.Option("--prompt", flags.prompt_tokens,
              "tokens of a prompt that is all there: its time to first token, and what limits it")
      .Within(1u, uint32_t{1} << 30)
      .Excludes(server);
  AddNumber(verb, "--target-hit", flags.target_hit_percent, 1e-6, 100,
            "hit rate to reach, in %: the size for it, and with prices the cheapest setting")
      .Excludes(server);
  AddNumber(verb, "--target-ttft", flags.target_ttft_ms, 1e-6, 1e9,
            "mean time to first token to reach, in ms")
      .Excludes(server);
}

constexpr char kFooter[] =
    "Every figure says where it comes from: published (the model's geometry), given (typed in),\n"
    "measured (here, or counted), modelled (a formula over the others).\n"
    "Examples:\n"
    "  kvstow plan --model llama-3.1-8b\n"
    "  kvstow plan --model ./config.json --tp 8 --recipe int8 --recipe kvstow=6.0\n"
    "  kvstow plan --model llama-3.1-8b --trace conversation_trace.jsonl --size 512GiB\n"
    "  kvstow plan --model llama-3.1-8b --recipe kivi4 --plot curve.svg --profile "
    "sessions=500,turns=5,shared=2000,prompt=800,output=300,rate=0.2,think=30\n"
    "  kvstow plan --model llama-3.1-8b --recipe int8 --recipe kvstow=6.0 --trace trace.jsonl "
    "--ram "
    "256GiB --disk 2TiB --disk-bandwidth 3GB/s --link 25Gbit/s --prefill-tps 8000\n"
    "  kvstow plan --model llama-3.1-8b --trace trace.jsonl --target-hit 30 --ram-price 3 "
    "--disk-price 0.1\n"
    "  kvstow codec roundtrip --recipe kvstow --format json case.safetensors out.safetensors > "
    "runs.json\n"
    "  kvstow plan --model llama-3.1-8b --roundtrip runs.json --trace trace.jsonl --ram 256GiB\n"
    "  kvstow plan --model llama-3.1-8b --recipe kvstow=6.0 --trace trace.jsonl --ram 64GiB "
    "--link 25Gbit/s --prefill-tps 8000 --nodes 10 --remote 2TiB\n"
    "  kvstow plan --model llama-3.1-8b --recipe raw --recipe int8@14GB/s --link 10Gbit/s "
    "--prompt 32000\n"
    "  kvstow plan --server 127.0.0.1:7380 --recipe kvstow=6.0\n"
    "  kvstow plan --model deepseek-v3 --recipe mla8 --format json";

}  // namespace

void AddPlan(const Verb& app) {
  const Verb verb = app.Add(
      "plan", "Capacity planning: what a model's KV cache takes, and what keeping it gains");
  const auto flags = std::make_shared<Flags>();
  AddOutputFlags(verb, flags->output);
  const Flag server =
      verb.Option("--server", flags->server.server,
                  "instead of a model and a load: a kvstowd (HOST:PORT or unix:PATH) that tells "
                  "what it was asked for");
  verb.Option("--model", flags->model,
              "a Hugging Face config.json, a folder with one, or a name of the built-in table")
      .Excludes(server);
  AddConnectionFlags(verb, flags->server.tls, flags->server.token_file, flags->server.timeout_s);
  verb.Option("--kv-dtype", flags->kv_dtype,
              "f16, bf16, f32 or fp8: how the engine keeps KV, if not as the model says")
      .Excludes(server);
  verb.Option("--tp", flags->ranks, "ranks of the tensor-parallel group")
      .Within(1u, 1024u)
      .ShowDefault()
      .Excludes(server);
  const Flag recipes =
      verb.Option(
              "--recipe", flags->recipes,
              "may be repeated: a recipe whose size does not depend on the data, or NAME=RATIO; "
              "behind either @SPEED of its decoder, as int8@5GB/s")
          .Repeats()
          .ShowDefault();
  verb.Option("--roundtrip", flags->roundtrips,
              "may be repeated: a file with what `kvstow codec roundtrip --format json` "
              "printed: ratio and decoder's speed of its recipes, measured")
      .Repeats();
  verb.Option("--page-tokens", flags->page_tokens, "tokens of a page")
      .Within(1u, kMaxPageTokens)
      .ShowDefault()
      .Excludes(server);
  const Flag trace = verb.Option("--trace", flags->trace,
                                 "a Mooncake or Bailian trace (JSON lines, also .gz): the load");
  const Flag profile =
      verb.Option("--profile", flags->profile,
                  "a load in numbers: sessions=,turns=,shared=,prompt=,output=,rate=,think=");
  trace.Excludes(server);
  profile.Excludes(server).Excludes(trace);
  verb.Each(
          "--size", [flags](const std::string& text) { flags->sizes.push_back(SizeOf(text)); },
          "may be repeated: a size to tell the hit rate of")
      .Repeats()
      .TypeName("SIZE");
  verb.Option("--plot", flags->plot, "SVG file to draw hit rate against size into")
      .Excludes(server);
  AddHardware(verb, *flags, server);
  AddFleetFlags(verb, flags->fleet, server);
  verb.Footer(kFooter);
  verb.Run([flags, recipes] { return Plan(*flags, recipes.given()); });
}

}  // namespace kvstow::cli
