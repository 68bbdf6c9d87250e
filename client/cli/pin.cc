// kvstow pin, kvstow unpin: pages of a case that must not be dropped.
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"

namespace kvstow::cli {
namespace {

using Flags = CaseVerbFlags;

int Pin(const Flags& flags, bool pinned) {
  const auto client = Connect(flags.server);
  const auto pages = OpenCaseInSpace(*client, flags.pages);
  if (!pages.ok()) return FailCase(flags.output, pages.status());
  return ReportOutcomes(flags.output, pinned ? "pinned" : "unpinned",
                        client->Pin(flags.pages.space, pages->keys, pinned));
}

void AddVerb(const Verb& app, const std::string& name, const std::string& summary, bool pinned) {
  const Verb verb = app.Add(name, summary);
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Footer("Examples:\n  kvstow " + name + " --space smollm2 system-prompt.safetensors");
  verb.Run([flags, pinned] { return Pin(*flags, pinned); });
}

}  // namespace

void AddPin(const Verb& app) {
  AddVerb(app, "pin", "Keep the pages of a case: they may cool, but are never dropped", true);
  AddVerb(app, "unpin", "Let the pages of a case go again", false);
}

}  // namespace kvstow::cli
