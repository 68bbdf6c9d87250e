// kvstow spaces: which spaces there are.
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/cli/usage.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
};

std::string FidelityText(v1::Fidelity fidelity) {
  return std::string(FidelityName(static_cast<Fidelity>(fidelity)));
}

Json ToJson(const v1::SpaceUsage& space) {
  Json out = {{"space", space.space()},
              {"tenant", space.tenant()},
              {"recipe", space.recipe()},
              {"fidelity", FidelityText(space.fidelity())},
              {"model", space.spec().model()},
              {"revision", space.spec().revision()},
              {"layers", space.spec().layers()},
              {"kv_heads", space.spec().kv_heads()},
              {"head_dim", space.spec().head_dim_k()},
              {"dtype", v1::DType_Name(space.spec().dtype())},
              {"page_tokens", space.spec().page_tokens()},
              {"pages", space.pages()},
              {"raw_bytes", space.raw_bytes()},
              {"encoded_bytes", space.encoded_bytes()}};
  if (space.has_fitted()) out["fitted"] = FittedJson(space.fitted());
  return out;
}

int Spaces(const Flags& flags) {
  const auto client = Connect(flags.server);
  const auto usage =
      CallServer<v1::UsageResponse>(*client, "/kvstow.v1.KvCache/Usage", v1::UsageRequest());
  if (!usage.ok()) return Fail(flags.output, usage.status());
  Json spaces = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const v1::SpaceUsage& s : usage->spaces()) {
    spaces.push_back(ToJson(s));
    rows.push_back({SpaceLabel(s), s.recipe(), FidelityText(s.fidelity()),
                    absl::StrCat(s.spec().layers(), "x", s.spec().kv_heads(), "x",
                                 s.spec().head_dim_k(), " ", v1::DType_Name(s.spec().dtype())),
                    absl::StrCat(s.spec().page_tokens()), absl::StrCat(s.pages()),
                    FormatSize(s.encoded_bytes()), FormatRatio(s.raw_bytes(), s.encoded_bytes()),
                    s.spec().model()});
  }
  Print(flags.output, {{"spaces", spaces}},
        rows.empty() ? "there are no spaces yet: `kvstow put --space NAME CASE` makes one\n"
                     : FormatTable({"SPACE", "RECIPE", "FIDELITY", "KV", "PAGE", "PAGES", "HELD",
                                    "RATIO", "MODEL"},
                                   rows));
  return kDone;
}

}  // namespace

void AddSpaces(const Verb& app) {
  const Verb verb = app.Add("spaces", "Which spaces there are");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  verb.Footer("Examples:\n  kvstow spaces\n  kvstow spaces --format json");
  verb.Run([flags] { return Spaces(*flags); });
}

}  // namespace kvstow::cli
