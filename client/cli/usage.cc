#include "client/cli/usage.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

double BitsOf(uint64_t bytes, uint64_t of) {
  return of == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(of);
}

Json AgeJson(const v1::AgeUsage& row) {
  return {{"tier", row.tier()},
          {"idle_from_ms", row.idle_from_ms()},
          {"idle_below_ms", row.idle_below_ms()},
          {"pages", row.pages()},
          {"tokens", row.tokens()},
          {"raw_bytes", row.raw_bytes()},
          {"encoded_bytes", row.encoded_bytes()},
          {"bits_per_token", BitsOf(row.encoded_bytes(), row.tokens())},
          {"bits_per_value", BitsOf(row.encoded_bytes(), row.values())},
          {"levels", row.levels()}};
}

std::string AgeText(const v1::AgeUsage& row) {
  const auto time = [](uint64_t ms) {
    return absl::FormatDuration(absl::Milliseconds(static_cast<int64_t>(ms)));
  };
  if (row.idle_below_ms() == 0) return absl::StrCat(">= ", time(row.idle_from_ms()));
  return absl::StrCat("< ", time(row.idle_below_ms()));
}

}  // namespace

Json TierJson(const v1::TierUsage& usage) {
  return {{"tier", usage.tier()},
          {"budget_bytes", usage.budget_bytes()},
          {"encoded_bytes", usage.encoded_bytes()},
          {"raw_bytes", usage.raw_bytes()},
          {"pages", usage.pages()},
          {"segments", usage.segments()}};
}

Json TiersJson(const Tiers& tiers, bool budgets) {
  Json out = Json::array();
  for (const v1::TierUsage& t : tiers) {
    out.push_back(TierJson(t));
    if (!budgets) out.back().erase("budget_bytes");
  }
  return out;
}

std::string TiersTable(const Tiers& tiers, bool budgets) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::TierUsage& t : tiers) {
    const std::string full = t.budget_bytes() == 0
                                 ? "-"
                                 : FormatFixed(100.0 * static_cast<double>(t.encoded_bytes()) /
                                                   static_cast<double>(t.budget_bytes()),
                                               1) +
                                       "%";
    rows.push_back({t.tier(), absl::StrCat(t.pages()), absl::StrCat(t.segments()),
                    FormatSize(t.encoded_bytes()), budgets ? FormatSize(t.budget_bytes()) : "-",
                    full, FormatSize(t.raw_bytes()),
                    FormatRatio(t.raw_bytes(), t.encoded_bytes())});
  }
  return FormatTable({"TIER", "PAGES", "SEGMENTS", "HELD", "BUDGET", "FULL", "RAW", "RATIO"}, rows);
}

Json AgesJson(const v1::AgesResponse& ages) {
  Json rows = Json::array();
  for (const v1::AgeUsage& row : ages.rows()) rows.push_back(AgeJson(row));
  return {{"pages", ages.pages()}, {"sampled_pages", ages.sampled_pages()}, {"rows", rows}};
}

std::string AgesTable(const v1::AgesResponse& ages) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::AgeUsage& row : ages.rows()) {
    rows.push_back(
        {row.tier(), AgeText(row), absl::StrCat(row.pages()), FormatSize(row.encoded_bytes()),
         FormatFixed(BitsOf(row.encoded_bytes(), row.tokens()), 0),
         FormatFixed(BitsOf(row.encoded_bytes(), row.values()), 2), FormatFixed(row.levels(), 2)});
  }
  std::string out =
      FormatTable({"TIER", "UNUSED", "PAGES", "HELD", "BITS/TOKEN", "BITS/VALUE", "LEVELS"}, rows);
  if (ages.sampled_pages() < ages.pages()) {
    absl::StrAppend(&out, "estimated from ", ages.sampled_pages(), " pages\n");
  }
  return out;
}

std::string SpaceLabel(const v1::SpaceUsage& space) {
  return space.tenant().empty() ? space.space()
                                : absl::StrCat(space.space(), " of ", space.tenant());
}

Json FittedJson(const v1::FittedForm& form) {
  return {{"target", form.target()}, {"recipe", form.recipe()},
          {"ratio", form.ratio()},   {"divergence", form.divergence()},
          {"tokens", form.tokens()}, {"fits", form.fits()},
          {"note", form.note()},     {"statistics", form.statistics()}};
}

std::string FittedText(const v1::FittedForm& form) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"cold pages become", form.recipe().empty()
                                ? "their recipe's own cold form, until a fit is smaller"
                                : form.recipe()}};
  if (form.ratio() > 0) {
    fields.emplace_back("that is", absl::StrCat(FormatFixed(form.ratio(), 1), " x smaller, at ",
                                                FormatFixed(form.divergence(), 4),
                                                " nats, as predicted on pages held out"));
  }
  fields.emplace_back("may cost", absl::StrCat(FormatFixed(form.target(), 4), " nats"));
  if (form.tokens() > 0) fields.emplace_back("fitted on", absl::StrCat(form.tokens(), " tokens"));
  fields.emplace_back("the model's statistics", form.statistics() ? "were sent" : "are not known");
  if (!form.note().empty()) fields.emplace_back("last look", form.note());
  return FormatFields(fields);
}

}  // namespace kvstow::cli
