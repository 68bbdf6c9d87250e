#include "client/cli/case_pages.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/key_chain.h"
#include "client/page_columns.h"

namespace kvstow::cli {
namespace {

// Marks the status of a space that is not there: files may be NOT_FOUND, too.
constexpr char kNoSpace[] = "kvstow.cli/no-space";

}  // namespace

void AddCaseVerbFlags(const Verb& verb, CaseVerbFlags& flags) {
  AddServerFlags(verb, flags.server);
  AddOutputFlags(verb, flags.output);
  verb.Option("--space", flags.pages.space, "name of the space").Required();
  verb.Option("CASE", flags.pages.path, "safetensors file with k.L, v.L and tokens").Required();
}

CasePages CutCase(CaseFile file, uint32_t page_tokens) {
  const KvSpec spec = file.Spec(page_tokens);
  std::vector<std::string> keys = PageKeys({}, file.tokens(), page_tokens);
  return {std::move(file), spec, std::move(keys)};
}

absl::StatusOr<CasePages> OpenCaseInSpace(Client& client, const CaseFlags& flags) {
  KVSTOW_ASSIGN_OR_RETURN(CaseFile file, CaseFile::Open(flags.path));
  const absl::StatusOr<SpaceInfo> found = client.FindSpace(flags.space);
  if (absl::IsNotFound(found.status())) {
    absl::Status none =
        absl::NotFoundError(absl::StrCat("there is no space '", flags.space,
                                         "': `kvstow spaces` lists them, `kvstow put` makes one"));
    none.SetPayload(kNoSpace, absl::Cord());
    return none;
  }
  KVSTOW_ASSIGN_OR_RETURN(const SpaceInfo space, found);
  CasePages pages = CutCase(std::move(file), space.spec.page_tokens);
  if (pages.spec.revision == kUnversioned) pages.spec.revision = space.spec.revision;
  if (const std::string difference = FirstDifference(space.spec, pages.spec); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(flags.path, " does not fit space '", flags.space, "': ", difference));
  }
  return pages;
}

int FailCase(const OutputFlags& flags, const absl::Status& status) {
  Fail(flags, status);
  return status.GetPayload(kNoSpace).has_value() ? kMiss : kFailed;
}

Stop StopOf(const GetResult& result) {
  return {
      .why = absl::StrCat(OutcomeName(result.outcome), ": ", result.message),
      .failed = result.outcome != PageOutcome::kMiss && result.outcome != PageOutcome::kExpired};
}

int PrintHits(const CaseVerbFlags& flags, Json json, const Fields& fields, const Stop& stop) {
  const bool miss = json["hit_pages"] == 0;
  std::string text = FormatFields(fields);
  if (miss && stop.why.empty()) {
    text = absl::StrCat("a miss: nothing of this prompt is stored in '", flags.pages.space, "'\n");
  } else if (miss) {
    text = absl::StrCat(stop.failed ? "failed" : "a miss", ": this prompt is stored in '",
                        flags.pages.space, "', and its first page did not come\n");
  }
  if (!stop.why.empty()) {
    json["stopped"] = stop.why;
    absl::StrAppend(&text, "stopped at ", stop.why, "\n");
  }
  Print(flags.output, json, text);
  if (stop.failed) return kFailed;
  return miss ? kMiss : kDone;
}

std::string TiersText(const std::map<std::string, uint64_t>& pages_by_tier) {
  return absl::StrJoin(pages_by_tier, ", ", absl::PairFormatter(": "));
}

absl::StatusOr<CaseColumns> CaseColumns::Read(const CasePages& pages,
                                              const std::string& attention) {
  CaseColumns out;
  if (attention == "none") return out;
  KVSTOW_ASSIGN_OR_RETURN(out.attention_, CaseAttention::Read(pages.file));
  out.names_ = {"attn_sum"};
  if (attention == "window") {
    out.names_ = {"attn_window", "attn_window_var", "attn_last", "attn_hits"};
  }
  KVSTOW_RETURN_IF_ERROR(out.attention_->Need(out.names_[0]));
  return out;
}

std::vector<PageColumn> CaseColumns::Page(const CasePages& pages, size_t page) const {
  if (!attention_.has_value()) return {};
  AttentionColumns all = attention_->Page(pages.First(page), pages.Count(page));
  std::erase_if(all, [&](const auto& column) {
    return std::find(names_.begin(), names_.end(), column.first) == names_.end();
  });
  std::vector<PageColumn> out = PageColumnsOf(all, pages.spec.kv_heads);
  for (PageColumn& column : out) column.context = pages.tokens();
  return out;
}

int ReportOutcomes(const OutputFlags& flags, const std::string& done_word,
                   const absl::StatusOr<std::vector<PageOutcome>>& outcomes) {
  if (!outcomes.ok()) return Fail(flags, outcomes.status());
  const auto count = [&](PageOutcome outcome) {
    return std::count(outcomes->begin(), outcomes->end(), outcome);
  };
  const auto done = count(PageOutcome::kHit), missed = count(PageOutcome::kMiss);
  const auto unavailable = count(PageOutcome::kUnavailable);
  const auto refused = static_cast<int64_t>(outcomes->size()) - done - missed - unavailable;
  std::string text = absl::StrCat(done, " pages ", done_word, ", ", missed, " were not there, ",
                                  refused, " were refused", refused > 0 ? " (leased)\n" : "\n");
  if (unavailable > 0) {
    absl::StrAppend(&text, unavailable, " may still be on disk, which refuses writes: try again\n");
  }
  Print(flags,
        {{done_word, done}, {"missed", missed}, {"refused", refused}, {"unavailable", unavailable}},
        text);
  if (refused + unavailable > 0) return kFailed;
  return done == 0 ? kMiss : kDone;
}

}  // namespace kvstow::cli
