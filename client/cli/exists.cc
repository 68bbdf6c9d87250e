// kvstow exists: how much of a case is stored.
#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

using Flags = CaseVerbFlags;

int Exists(const Flags& flags) {
  const auto client = Connect(flags.server);
  const auto pages = OpenCaseInSpace(*client, flags.pages);
  if (!pages.ok()) return FailCase(flags.output, pages.status());
  const PrefixHit hit = client->Lookup(flags.pages.space, pages->keys, /*lease=*/false);
  if (!hit.status.ok()) return Fail(flags.output, hit.status);
  std::map<std::string, uint64_t> tiers;
  for (const std::string& tier : hit.tiers) ++tiers[tier];
  return PrintHits(flags,
                   {{"space", flags.pages.space},
                    {"tokens", pages->tokens()},
                    {"hit_tokens", hit.tokens},
                    {"hit_pages", hit.pages},
                    {"tiers", tiers}},
                   {{"hit", absl::StrCat(hit.tokens, " of ", pages->tokens(), " tokens")},
                    {"pages", TiersText(tiers)}});
}

}  // namespace

void AddExists(const Verb& app) {
  const Verb verb =
      app.Add("exists", "How many leading tokens of a case are stored; exit code 3 when none are");
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Footer("Examples:\n  kvstow exists --space smollm2 prompt.safetensors");
  verb.Run([flags] { return Exists(*flags); });
}

}  // namespace kvstow::cli
