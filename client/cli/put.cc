// kvstow put: a case's pages go into a space.
#include <deque>
#include <future>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/payload_flags.h"
#include "client/cli/text.h"
#include "kernels/importance/query_tables.h"

namespace kvstow::cli {
namespace {

constexpr uint64_t kBatchBytes = 16 << 20;  // of pages in one call
constexpr size_t kBatchesUnderWay = 3;
constexpr uint32_t kDefaultPageTokens = 256;

struct Flags : CaseVerbFlags {
  std::string recipe, fidelity, attention = "none";
  PayloadFlags payload;
  uint32_t page_tokens = 0;
  std::string revision;
  bool is_private = false, queries = false;
};

struct Totals {
  uint64_t pages = 0, stored = 0, already_there = 0, failed = 0, fell_back = 0;
  uint64_t raw_bytes = 0, stored_bytes = 0;
  std::set<std::string> recipes;
  std::string failure;  // the first
  double seconds = 0;
};

// Pages of one call, with the bytes that it needs until it is done.
struct Batch {
  std::vector<std::vector<uint8_t>> raw;
  std::future<std::vector<PutResult>> results;
};

Batch StartBatch(Client& client, const std::string& space, const CasePages& pages,
                 const CaseColumns& columns, size_t& next) {
  Batch batch;
  std::vector<PagePut> puts;
  uint64_t bytes = 0;
  for (; next < pages.keys.size() && (bytes == 0 || bytes + pages.Bytes(next) <= kBatchBytes);
       ++next) {
    std::vector<uint8_t>& raw = batch.raw.emplace_back(pages.Bytes(next));
    pages.file.ReadPage(pages.First(next), pages.Count(next), raw);
    puts.push_back({.key = pages.keys[next],
                    .raw = raw,
                    .tokens = pages.Count(next),
                    .first_position = pages.First(next),
                    .columns = columns.Page(pages, next)});
    bytes += raw.size();
  }
  batch.results = client.Put(space, std::move(puts));
  return batch;
}

void Count(Batch& batch, Totals& totals) {
  const std::vector<PutResult> results = batch.results.get();
  for (size_t i = 0; i < results.size(); ++i) {
    const PutResult& r = results[i];
    ++totals.pages;
    totals.raw_bytes += batch.raw[i].size();
    totals.stored_bytes += r.stored_bytes;
    totals.fell_back += r.fell_back ? 1 : 0;
    if (!r.recipe.empty()) totals.recipes.insert(r.recipe);
    if (r.outcome == PageOutcome::kStored) {
      ++totals.stored;
    } else if (r.outcome == PageOutcome::kAlreadyThere) {
      ++totals.already_there;
    } else if (++totals.failed == 1) {
      totals.failure = absl::StrCat(OutcomeName(r.outcome), ": ", r.message);
    }
  }
}

Totals Stream(Client& client, const std::string& space, const CasePages& pages,
              const CaseColumns& columns) {
  Totals totals;
  Progress progress("put", PageBytes(pages.spec, 1) * pages.tokens());
  const Time start = Clock::Real().Now();
  std::deque<Batch> under_way;
  size_t next = 0;
  while (next < pages.keys.size() || !under_way.empty()) {
    if (next < pages.keys.size() && under_way.size() < kBatchesUnderWay && totals.failed == 0) {
      under_way.push_back(StartBatch(client, space, pages, columns, next));
      continue;
    }
    if (under_way.empty()) break;  // a page failed: do not start more
    Count(under_way.front(), totals);
    under_way.pop_front();
    progress.Update(totals.raw_bytes);
  }
  totals.seconds = SecondsSince(start);
  return totals;
}

// The case as pages of the space: what was asked for, else what the space has, else what a new one
// gets.
absl::StatusOr<CasePages> CutForSpace(Client& client, const Flags& flags) {
  KVSTOW_ASSIGN_OR_RETURN(CaseFile file, CaseFile::Open(flags.pages.path));
  const absl::StatusOr<SpaceInfo> space = client.FindSpace(flags.pages.space);
  if (!space.ok() && !absl::IsNotFound(space.status())) return space.status();
  const uint32_t usual = space.ok() ? space->spec.page_tokens : kDefaultPageTokens;
  CasePages pages = CutCase(std::move(file), flags.page_tokens != 0 ? flags.page_tokens : usual);
  if (!flags.revision.empty()) {
    pages.spec.revision = flags.revision;
  } else if (space.ok() && pages.spec.revision == kUnversioned) {
    pages.spec.revision = space->spec.revision;
  }
  return pages;
}

Fidelity FidelityFlag(const std::string& name) {
  for (const Fidelity f : {Fidelity::kExact, Fidelity::kDense, Fidelity::kSparse}) {
    if (name == FidelityName(f)) return f;
  }
  return Fidelity::kUnspecified;
}

// Sends the distribution of the case's queries; the calibration that has it.
absl::StatusOr<std::string> SendQueries(Client& client, const CasePages& pages) {
  KVSTOW_ASSIGN_OR_RETURN(const CaseAttention attention, CaseAttention::Read(pages.file));
  if (attention.queries() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--queries: ", pages.file.path(), " has no tensors q.L"));
  }
  KVSTOW_ASSIGN_OR_RETURN(const std::string blob,
                          QueryCalibration(pages.spec, *attention.queries()));
  return client.SendCalibration(AsBytes(blob));
}

absl::StatusOr<Totals> PutCase(const Flags& flags) {
  KVSTOW_ASSIGN_OR_RETURN(const auto client, ConnectWith(flags.server, flags.payload));
  KVSTOW_ASSIGN_OR_RETURN(const CasePages pages, CutForSpace(*client, flags));
  KVSTOW_ASSIGN_OR_RETURN(const CaseColumns columns, CaseColumns::Read(pages, flags.attention));
  SpaceOptions space{.name = flags.pages.space,
                     .spec = pages.spec,
                     .recipe = flags.recipe,
                     .fidelity = FidelityFlag(flags.fidelity)};
  if (flags.is_private) space.is_private = true;
  if (flags.queries) {
    KVSTOW_ASSIGN_OR_RETURN(space.queries, SendQueries(*client, pages));
  }
  KVSTOW_ASSIGN_OR_RETURN(const SpaceInfo opened, client->OpenSpace(space));
  if (flags.payload.payload == "encoded") KVSTOW_RETURN_IF_ERROR(opened.put_encoded);
  return Stream(*client, flags.pages.space, pages, columns);
}

int Put(const Flags& flags) {
  const absl::StatusOr<Totals> totals = PutCase(flags);
  if (!totals.ok()) return Fail(flags.output, totals.status());
  if (totals->failed > 0) {
    return Fail(flags.output, absl::InternalError(absl::StrCat(
                                  totals->failed, " of ", totals->pages,
                                  " pages were not stored; the first: ", totals->failure)));
  }
  const double gbps = GigabytesPerSecond(totals->raw_bytes, totals->seconds);
  Print(
      flags.output,
      {{"space", flags.pages.space},
       {"pages", totals->pages},
       {"stored", totals->stored},
       {"already_there", totals->already_there},
       {"raw_bytes", totals->raw_bytes},
       {"stored_bytes", totals->stored_bytes},
       {"ratio", static_cast<double>(totals->raw_bytes) /
                     static_cast<double>(std::max<uint64_t>(totals->stored_bytes, 1))},
       {"recipe", absl::StrJoin(totals->recipes, ", ")},
       {"fell_back", totals->fell_back},
       {"seconds", totals->seconds},
       {"gbps", gbps}},
      FormatFields({{"pages", absl::StrCat(totals->pages, ", ", totals->already_there,
                                           " of them were there already")},
                    {"raw", absl::StrCat(totals->raw_bytes, " bytes")},
                    {"stored", absl::StrCat(totals->stored_bytes, " bytes, ",
                                            FormatRatio(totals->raw_bytes, totals->stored_bytes))},
                    {"recipe", absl::StrJoin(totals->recipes, ", ")},
                    {"time", absl::StrCat(FormatFixed(totals->seconds, 3), " s, ",
                                          FormatFixed(gbps, 2), " GB/s")}}));
  return kDone;
}

}  // namespace

void AddPut(const Verb& app) {
  const Verb verb = app.Add("put", "Store the KV cache of a case");
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Option(
      "--recipe", flags->recipe,
      "codec of a new space, see `kvstow codec list`; hot=RECIPE,cold=RECIPE for a form to put and "
      "one to keep; auto for one that the server fits; the server's default if left out");
  verb.Option("--fidelity", flags->fidelity, "what a new space promises")
      .OneOf({"exact", "dense", "sparse"});
  verb.Option("--page-tokens", flags->page_tokens,
              "tokens of a page; the space's own, or 256 for a new space, if left out")
      .Within(1u, kMaxPageTokens);
  verb.Option("--revision", flags->revision,
              "of the model's weights: a commit or a digest; the case's own, else the "
              "space's, else 'unversioned', if left out");
  verb.Switch("--private", flags->is_private,
              "a new space of one session alone: a sparse recipe may then drop tokens by what "
              "queries looked at");
  verb.Switch("--queries", flags->queries,
              "send the distribution of the case's last queries (q.L) along, for a new space "
              "whose policy reads it, as expected-attention does; pages put later are scored by "
              "the same one");
  verb.Option("--attention", flags->attention,
              "attention columns of the case to send along: sum (attn_sum), or window "
              "(attn_window, and what else its last queries give)")
      .OneOf({"none", "sum", "window"})
      .ShowDefault();
  AddPayloadFlags(verb, flags->payload);
  verb.Footer(
      "Examples:\n  kvstow put --space smollm2 prompt.safetensors\n"
      "  kvstow put --space small --recipe int8 --page-tokens 128 prompt.safetensors\n"
      "  kvstow put --space mine --fidelity sparse --private --attention window "
      "--recipe 'snapkv(keep=0.25)|int8' prompt.safetensors\n"
      "  kvstow put --space expected --fidelity sparse --queries "
      "--recipe 'expected-attention(keep=0.5)|int8' prompt.safetensors\n"
      "  kvstow put --space smollm2 --payload encoded prompt.safetensors");
  verb.Run([flags] { return Put(*flags); });
}

}  // namespace kvstow::cli
