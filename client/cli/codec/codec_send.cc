// kvstow codec send: a calibration, or statistics of a space's model, go to a running server.
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
  std::string path, space;
};

int SendToSpace(const Flags& flags, Client& client, std::span<const uint8_t> blob) {
  const absl::StatusOr<SpaceInfo> space = client.FindSpace(flags.space);
  if (!space.ok()) return Fail(flags.output, space.status());
  const absl::Status sent = client.SendStatistics(flags.space, blob);
  if (!sent.ok()) return Fail(flags.output, sent);
  Print(flags.output, {{"space", flags.space}, {"bytes", blob.size()}},
        FormatFields({{"statistics of", flags.space},
                      {"sent", absl::StrCat(blob.size(), " bytes")},
                      {"next", "the server fits the space's cold form anew; see `kvstow stats`"}}));
  return kDone;
}

int Send(const Flags& flags) {
  const auto client = Connect(flags.server);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(flags.output, file.status());
  if (!flags.space.empty()) return SendToSpace(flags, *client, file->bytes());
  const absl::StatusOr<std::string> id = client->SendCalibration(file->bytes());
  if (!id.ok()) {
    return Fail(flags.output, absl::Status(id.status().code(),
                                           absl::StrCat(flags.path, ": ", id.status().message())));
  }
  const std::string name = HexOf(AsBytes(*id));
  Print(flags.output, {{"calibration", name}, {"bytes", file->bytes().size()}},
        FormatFields(
            {{"calibration", name}, {"sent", absl::StrCat(file->bytes().size(), " bytes")}}));
  return kDone;
}

}  // namespace

void AddCodecSend(const Verb& codec) {
  const Verb verb =
      codec.Add("send", "Give a server a calibration, or a space the statistics of its model");
  const auto flags = std::make_shared<Flags>();
  AddOneServerFlags(verb, flags->server, /*timeout_s=*/600);
  AddOutputFlags(verb, flags->output);
  verb.Option("FILE", flags->path, "what `kvstow codec calibrate` or `kvstow-calibrate` wrote")
      .Required();
  verb.Option(
      "--space", flags->space,
      "FILE holds statistics of a model (`kvstow-calibrate --statistics`) for this space of "
      "recipe auto");
  verb.Footer(
      "Examples:\n"
      "  kvstow codec send model.kvcal\n"
      "  kvstow codec send --space demo model.kvstats");
  verb.Run([flags] { return Send(*flags); });
}

}  // namespace kvstow::cli
