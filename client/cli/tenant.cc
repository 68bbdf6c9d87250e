// kvstow tenant: a new key for what a tenant writes to disk, and the end of a tenant.
#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string tenant;
};

int RotateKey(const Flags& flags) {
  const auto client = Connect(flags.server);
  v1::RotateKeyRequest request;
  request.set_tenant(flags.tenant);
  const auto response =
      CallServer<v1::RotateKeyResponse>(*client, "/kvstow.v1.Admin/RotateKey", request);
  if (!response.ok()) return Fail(flags.output, response.status());
  Print(flags.output, {{"tenant", flags.tenant}, {"rotated", true}},
        absl::StrCat("what '", flags.tenant, "' writes from now on has a new data key\n"));
  return kDone;
}

int Drop(const Flags& flags) {
  const auto client = Connect(flags.server);
  v1::DropTenantRequest request;
  request.set_tenant(flags.tenant);
  const auto response =
      CallServer<v1::DropTenantResponse>(*client, "/kvstow.v1.Admin/DropTenant", request);
  if (!response.ok()) return Fail(flags.output, response.status());
  Print(flags.output, {{"tenant", flags.tenant}, {"spaces", response->spaces()}},
        absl::StrCat("dropped '", flags.tenant, "': ", response->spaces(),
                     " spaces, and its data keys where the server encrypts\n"));
  return kDone;
}

void AddOne(const Verb& tenant, const char* name, const char* help, int (*run)(const Flags&),
            const char* examples) {
  const Verb verb = tenant.Add(name, help);
  const auto flags = std::make_shared<Flags>();
  verb.Option("TENANT", flags->tenant, "name; \"\" on a server without identities").Required();
  AddOneServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  verb.Footer(examples);
  verb.Run([flags, run] { return run(*flags); });
}

}  // namespace

void AddTenant(const Verb& app) {
  const Verb verb = app.Add("tenant", "Data keys of a tenant, and its end");
  verb.NeedsVerb();
  AddOne(verb, "rotate-key", "A new data key for what the tenant writes from now on", RotateKey,
         "Pages that are there stay readable; nothing is written again.\n\n"
         "Examples:\n  kvstow tenant rotate-key team-a");
  AddOne(verb, "drop", "Drop a tenant's spaces, and erase its data keys if the server encrypts",
         Drop,
         "Its pages are misses at once. Their bytes that are left on an encrypted disk are noise "
         "without the keys.\n\nExamples:\n  kvstow tenant drop team-a");
  verb.Footer("Examples:\n  kvstow tenant rotate-key team-a\n  kvstow tenant drop team-a");
}

}  // namespace kvstow::cli
