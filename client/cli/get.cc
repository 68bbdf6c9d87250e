// kvstow get: the longest stored prefix of a case, or chosen tokens of it, come back into a file.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/payload_flags.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

constexpr uint64_t kBatchBytes = 64 << 20;  // of pages in one call

struct Flags : CaseVerbFlags {
  std::string out;
  PayloadFlags payload;
  std::string tokens;  // ranges; "" = all
  uint32_t max_levels = 0, min_levels = 0;
  std::optional<double> max_error;
};

struct TokenRange {
  uint32_t first = 0, end = 0;
};

// "0-64,128-160": rising, apart, none empty; the end is not in a range.
absl::StatusOr<std::vector<TokenRange>> ParseRanges(absl::string_view text) {
  std::vector<TokenRange> ranges;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    TokenRange range;
    const bool good = ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.first) &&
                      absl::SimpleAtoi(ends[1], &range.end) && range.first < range.end &&
                      (ranges.empty() || ranges.back().end <= range.first);
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is no range of tokens: write FIRST-END,..., rising, as 0-64"));
    }
    ranges.push_back(range);
  }
  return ranges;
}

// Tokens of one page that are wanted.
struct Piece {
  size_t page = 0;
  uint32_t first = 0, count = 0;  // in the page
};

absl::StatusOr<std::vector<Piece>> PiecesOf(const CasePages& pages, const std::string& text) {
  std::vector<TokenRange> ranges = {{0, pages.tokens()}};
  if (!text.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(ranges, ParseRanges(text));
  }
  if (ranges.back().end > pages.tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens ends at ", ranges.back().end,
                                                   ", the case has ", pages.tokens(), " tokens"));
  }
  std::vector<Piece> pieces;
  for (const TokenRange& range : ranges) {
    for (uint32_t at = range.first; at < range.end;) {
      const size_t page = at / pages.spec.page_tokens;
      const uint32_t first = at - pages.First(page);
      const uint32_t count = std::min(range.end - at, pages.Count(page) - first);
      pieces.push_back({page, first, count});
      at += count;
    }
  }
  return pieces;
}

struct Fetched {
  uint32_t asked_tokens = 0, tokens = 0;
  std::set<size_t> pages;
  std::vector<std::vector<uint8_t>> raw;       // of each piece
  std::vector<std::optional<Selection>> kept;  // of each piece, where it lacks tokens
  double kept_share = 0, estimated_error = 0;  // mean of the tokens; of the worst page
  std::map<std::string, uint64_t> tiers;
  std::set<std::string> recipes;
  std::set<uint32_t> levels;
  uint64_t raw_bytes = 0, stored_bytes = 0;
  Stop stop;
  double seconds = 0;
};

// Takes the leading hits of a batch, which begins at `pieces`; false when it did not all come.
bool Take(std::vector<GetResult> results, std::vector<std::vector<uint8_t>> buffers,
          const Piece* pieces, const KvSpec& spec, Fetched& fetched) {
  for (size_t i = 0; i < results.size(); ++i) {
    GetResult& r = results[i];
    if (r.outcome == PageOutcome::kHit && r.bytes != buffers[i].size()) {
      fetched.stop = {.why = "a page came back with another size than the case's", .failed = true};
      return false;
    }
    if (r.outcome != PageOutcome::kHit) {
      fetched.stop = StopOf(r);
      return false;
    }
    fetched.tokens += r.tokens;
    fetched.raw_bytes += r.bytes;
    if (fetched.pages.insert(pieces[i].page).second) {
      fetched.stored_bytes += r.stored_bytes;
      ++fetched.tiers[r.tier];
    }
    fetched.recipes.insert(r.recipe);
    fetched.levels.insert(r.levels);
    fetched.kept_share += r.kept_share * r.tokens;
    fetched.estimated_error = std::max(fetched.estimated_error, r.estimated_error);
    fetched.kept.emplace_back();
    if (!r.keep.empty()) {
      fetched.kept.back() = Selection{spec.layers, r.tokens, spec.kv_heads, std::move(r.keep)};
    }
    fetched.raw.push_back(std::move(buffers[i]));
  }
  return true;
}

void FetchPieces(Client& client, const Flags& flags, const CasePages& pages, uint64_t lease,
                 std::span<const Piece> pieces, Fetched& fetched) {
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += PageBytes(pages.spec, piece.count);
  Progress progress("get", total);
  const Time start = Clock::Real().Now();
  for (size_t next = 0; next < pieces.size();) {
    const size_t first = next;
    std::vector<std::vector<uint8_t>> buffers;
    std::vector<PageGet> gets;
    for (uint64_t bytes = 0; next < pieces.size() && bytes < kBatchBytes; ++next) {
      const Piece& piece = pieces[next];
      std::vector<uint8_t>& buffer = buffers.emplace_back(PageBytes(pages.spec, piece.count));
      gets.push_back({.key = pages.keys[piece.page],
                      .out = buffer,
                      .max_levels = flags.max_levels,
                      .min_levels = flags.min_levels,
                      .first_token = piece.first,
                      .token_count = piece.count});
      if (flags.max_error.has_value()) gets.back().max_error = *flags.max_error;
      bytes += buffer.size();
    }
    auto results = client.Get(flags.pages.space, lease, std::move(gets)).get();
    if (!Take(std::move(results), std::move(buffers), &pieces[first], pages.spec, fetched)) break;
    progress.Update(fetched.raw_bytes);
  }
  fetched.seconds = SecondsSince(start);
  if (fetched.tokens > 0) fetched.kept_share /= fetched.tokens;
}

absl::StatusOr<Fetched> GetCase(const Flags& flags) {
  KVSTOW_ASSIGN_OR_RETURN(const auto client, ConnectWith(flags.server, flags.payload));
  KVSTOW_ASSIGN_OR_RETURN(const CasePages pages, OpenCaseInSpace(*client, flags.pages));
  KVSTOW_ASSIGN_OR_RETURN(std::vector<Piece> pieces, PiecesOf(pages, flags.tokens));
  const PrefixHit hit = client->Lookup(flags.pages.space, pages.keys);
  KVSTOW_RETURN_IF_ERROR(hit.status);
  Fetched fetched;
  for (const Piece& piece : pieces) fetched.asked_tokens += piece.count;
  std::erase_if(pieces, [&](const Piece& piece) { return piece.page >= hit.pages; });
  FetchPieces(*client, flags, pages, hit.lease, pieces, fetched);
  // The lease ends by itself too, so nothing is lost when this fails.
  if (hit.lease != 0) client->Release(hit.lease).IgnoreError();
  if (fetched.raw.empty()) return fetched;
  std::vector<DecodedPage> decoded;
  uint32_t first = 0;  // in the file, one range behind the other
  for (size_t p = 0; p < fetched.raw.size(); ++p) {
    decoded.push_back({first, pieces[p].count, fetched.raw[p],
                       fetched.kept[p].has_value() ? &*fetched.kept[p] : nullptr});
    first += pieces[p].count;
  }
  KVSTOW_RETURN_IF_ERROR(WriteDecoded(flags.out, pages.file, decoded, fetched.stored_bytes));
  return fetched;
}

int Get(const Flags& flags) {
  const absl::StatusOr<Fetched> got = GetCase(flags);
  if (!got.ok()) return FailCase(flags.output, got.status());
  const double gbps = GigabytesPerSecond(got->raw_bytes, got->seconds);
  Json json = {{"space", flags.pages.space},
               {"tokens", got->asked_tokens},
               {"hit_tokens", got->tokens},
               {"hit_pages", got->pages.size()},
               {"tiers", got->tiers},
               {"levels", got->levels},
               {"recipe", absl::StrJoin(got->recipes, ", ")},
               {"kept_share", got->kept_share},
               {"estimated_error", got->estimated_error},
               {"raw_bytes", got->raw_bytes},
               {"stored_bytes", got->stored_bytes},
               {"seconds", got->seconds},
               {"gbps", gbps}};
  return PrintHits(
      flags, std::move(json),
      {{"hit", absl::StrCat(got->tokens, " of ", got->asked_tokens, " tokens")},
       {"pages", TiersText(got->tiers)},
       {"levels", absl::StrJoin(got->levels, ", ")},
       {"recipe", absl::StrJoin(got->recipes, ", ")},
       {"kept", absl::StrCat(FormatFixed(100 * got->kept_share, 1), " % of K and V")},
       {"error",
        absl::StrCat(FormatFixed(got->estimated_error, 6), " estimated, of the worst page")},
       {"stored", absl::StrCat(got->stored_bytes, " bytes, ",
                               FormatRatio(got->raw_bytes, got->stored_bytes))},
       {"time", absl::StrCat(FormatFixed(got->seconds, 3), " s, ", FormatFixed(gbps, 2), " GB/s")}},
      got->stop);
}

}  // namespace

void AddGet(const Verb& app) {
  const Verb verb = app.Add("get",
                            "Fetch the longest stored prefix of a case into a file; exit code 3 "
                            "when there is none, 1 when "
                            "a page failed");
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Option("OUT", flags->out,
              "safetensors file to write k.L, v.L, and where tokens were dropped keep.L to")
      .Required();
  verb.Option("--tokens", flags->tokens,
              "only these tokens of the case: FIRST-END,..., rising; END is not among them. OUT "
              "has them one range behind the other; pages without any are not fetched")
      .Check([](const std::string& text) {
        return std::string(ParseRanges(text).status().message());
      });
  verb.Option("--max-levels", flags->max_levels, "decode at most so many levels; 0 = all")
      .ShowDefault();
  verb.Option("--min-levels", flags->min_levels, "a page with fewer levels is a miss")
      .ShowDefault();
  verb.Option("--max-error", flags->max_error,
              "a page whose estimated error (squared, relative to K and V) is larger is a "
              "miss; any if left out")
      .NonNegative();
  AddPayloadFlags(verb, flags->payload);
  verb.Footer(
      "Examples:\n  kvstow get --space smollm2 prompt.safetensors decoded.safetensors\n"
      "  kvstow get --space smollm2 --max-levels 1 prompt.safetensors base.safetensors\n"
      "  kvstow get --space smollm2 --tokens 0-4,512-640 prompt.safetensors some.safetensors\n"
      "  kvstow get --space smollm2 --max-error 0.01 prompt.safetensors decoded.safetensors\n"
      "  kvstow get --space smollm2 --payload encoded --calibration model.kvcal prompt.safetensors "
      "decoded.safetensors");
  verb.Run([flags] { return Get(*flags); });
}

}  // namespace kvstow::cli
