// kvstow del: a case's pages go.
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"

namespace kvstow::cli {
namespace {

struct Flags : CaseVerbFlags {
  bool force = false;
};

int Del(const Flags& flags) {
  const auto client = Connect(flags.server);
  const auto pages = OpenCaseInSpace(*client, flags.pages);
  if (!pages.ok()) return FailCase(flags.output, pages.status());
  return ReportOutcomes(flags.output, "deleted",
                        client->Delete(flags.pages.space, pages->keys, flags.force));
}

}  // namespace

void AddDel(const Verb& app) {
  const Verb verb = app.Add("del", "Delete the pages of a case; exit code 3 when none was there");
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Switch("--force", flags->force, "also pages that a lease holds");
  verb.Footer("Examples:\n  kvstow del --space smollm2 prompt.safetensors");
  verb.Run([flags] { return Del(*flags); });
}

}  // namespace kvstow::cli
