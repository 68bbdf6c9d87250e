// kvstow verify: read everything back and check every digest.
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string space, tenant;
};

int Verify(const Flags& flags) {
  const auto client = Connect(flags.server);
  v1::VerifyRequest request;
  request.set_space(flags.space);
  request.set_tenant(flags.tenant);
  const Time start = Clock::Real().Now();
  v1::VerifyProgress last;
  std::optional<Progress> bar;
  const absl::Status status = client->CallStreaming(
      "/kvstow.v1.Admin/Verify", request.SerializeAsString(), [&](absl::string_view message) {
        last.ParseFromArray(message.data(), static_cast<int>(message.size()));
        if (!bar) bar.emplace("verify", last.total_pages(), "pages");
        bar->Update(last.pages());
      });
  bar.reset();
  if (!status.ok()) return Fail(flags.output, status);
  if (!last.done()) {
    return Fail(flags.output, absl::InternalError("the server ended before it had read all"));
  }
  const double seconds = SecondsSince(start);
  Print(flags.output,
        {{"pages", last.pages()},
         {"bytes", last.bytes()},
         {"corrupt_pages", last.corrupt_pages()},
         {"seconds", seconds},
         {"gbps", GigabytesPerSecond(last.bytes(), seconds)}},
        absl::StrCat(last.pages(), " pages, ", FormatSize(last.bytes()), " read in ",
                     FormatFixed(seconds, 2), " s, ", last.corrupt_pages(), " corrupt\n"));
  return last.corrupt_pages() == 0 ? kDone : kFailed;
}

}  // namespace

void AddVerify(const Verb& app) {
  const Verb verb = app.Add(
      "verify", "Read everything back and check digests; damaged pages are dropped, exit code 1");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server, /*timeout_s=*/3600);
  AddOutputFlags(verb, flags->output);
  const Flag space = verb.Option("--space", flags->space, "only this space; all when left out");
  verb.Option("--tenant", flags->tenant, "whose space it is; no tenant's when left out")
      .Needs(space);
  verb.Footer("Examples:\n  kvstow verify\n  kvstow verify --space smollm2 --format json");
  verb.Run([flags] { return Verify(*flags); });
}

}  // namespace kvstow::cli
