// kvstow drop: a whole space goes, for everyone.
#include "absl/strings/str_cat.h"
#include "client/cli/cli.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string space;
};

int Drop(const Flags& flags) {
  const absl::StatusOr<uint64_t> pages = Connect(flags.server)->DropSpace(flags.space);
  if (absl::IsNotFound(pages.status())) {
    Print(flags.output, {{"space", flags.space}, {"dropped", false}, {"pages", 0}},
          absl::StrCat("there is no space '", flags.space, "': `kvstow spaces` lists them\n"));
    return kMiss;
  }
  if (!pages.ok()) return Fail(flags.output, pages.status());
  Print(flags.output, {{"space", flags.space}, {"dropped", true}, {"pages", *pages}},
        absl::StrCat("dropped '", flags.space, "' and its ", *pages, " pages\n"));
  return kDone;
}

}  // namespace

void AddDrop(const Verb& app) {
  const Verb verb =
      app.Add("drop",
              "Forget a space and all of its pages, leased and pinned ones too; exit code 3 when "
              "there is no such space");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  verb.Option("--space", flags->space, "name of the space").Required();
  verb.Footer(
      "An operator drops the spaces of a tenant, all at once, by `kvstow tenant drop TENANT`.\n\n"
      "Examples:\n  kvstow drop --space old-model");
  verb.Run([flags] { return Drop(*flags); });
}

}  // namespace kvstow::cli
