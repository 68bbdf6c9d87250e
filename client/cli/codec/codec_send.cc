// kvstow codec send: a calibration goes to a running server.
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "client/case/mapped_file.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string path;
};

int Send(const Flags& flags) {
  const auto client = Connect(flags.server);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(flags.output, file.status());
  const absl::StatusOr<std::string> id = client->SendCalibration(file->bytes());
  if (!id.ok()) return Fail(flags.output, id.status());
  const std::string name = HexOf(AsBytes(*id));
  Print(flags.output, {{"calibration", name}, {"bytes", file->bytes().size()}},
        FormatFields(
            {{"calibration", name}, {"sent", absl::StrCat(file->bytes().size(), " bytes")}}));
  return kDone;
}

}  // namespace

void AddCodecSend(const Verb& codec) {
  const Verb verb =
      codec.Add("send", "Give a server a calibration, for spaces whose recipe needs it");
  const auto flags = std::make_shared<Flags>();
  AddOneServerFlags(verb, flags->server, /*timeout_s=*/600);
  AddOutputFlags(verb, flags->output);
  verb.Option("FILE", flags->path, "what `kvstow codec calibrate` wrote").Required();
  verb.Footer("Examples:\n  kvstow codec send model.kvcal");
  verb.Run([flags] { return Send(*flags); });
}

}  // namespace kvstow::cli
