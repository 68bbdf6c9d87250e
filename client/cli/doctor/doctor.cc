// kvstow doctor: what is misconfigured on this machine, and what to do.
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/doctor/findings.h"
#include "client/cli/doctor/host_facts.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

constexpr uint64_t kMeasuredBytes = uint64_t{128} << 20;
constexpr char kInstalledConfig[] = "/etc/kvstow/kvstowd.conf";

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string config;
  bool no_disk = false;
};

std::map<std::string, std::string> SettingsOfFile(const std::string& path) {
  std::ifstream in(path);
  return ParseSettings(std::string((std::istreambuf_iterator<char>(in)), {}));
}

// The server's own settings where it answers, else those of its configuration file.
ServerFacts AskServer(const Flags& flags) {
  ServerFacts facts{.address = flags.server.server, .on_this_host = StaysHere(flags.server.server)};
  const auto client = Connect(flags.server);
  const auto status =
      CallServer<v1::StatusResponse>(*client, "/kvstow.v1.Admin/Status", v1::StatusRequest());
  if (status.ok()) {
    facts.address = client->serving().address;
    facts.on_this_host = StaysHere(facts.address);
    facts.version = status->version();
    facts.ready = status->ready();
    facts.settings = {status->config().begin(), status->config().end()};
  } else {
    facts.error = std::string(status.status().message());
    facts.answers = absl::IsUnimplemented(status.status());
    facts.settings = SettingsOfFile(flags.config.empty() ? kInstalledConfig : flags.config);
  }
  return facts;
}

std::vector<Finding> Examine(const Flags& flags) {
  const ServerFacts server = AskServer(flags);
  std::vector<Finding> all = FindServer(server, KVSTOW_VERSION);
  for (Finding& f : FindHost(ReadHost(""), server.settings)) all.push_back(std::move(f));
  const auto path = server.settings.find("disk-path");
  FolderFacts folder;
  std::optional<DiskSpeed> speed;
  std::string why = "it was not measured";
  if (path != server.settings.end() && !path->second.empty()) {
    folder = ReadFolder(path->second);
    if (!flags.no_disk && !folder.exists) {
      why = absl::StrCat(path->second, " is not there yet");
    } else if (!flags.no_disk) {
      speed = MeasureDisk(path->second, kMeasuredBytes, why);
    }
  }
  for (Finding& f : FindDisk(folder, speed, why, server.settings)) all.push_back(std::move(f));
  return all;
}

int Doctor(const Flags& flags) {
  const std::vector<Finding> findings = Examine(flags);
  Json rows = Json::array();
  std::string text;
  size_t subject_width = 0, counts[4] = {};
  for (const Finding& f : findings) subject_width = std::max(subject_width, f.subject.size());
  for (const Finding& f : findings) {
    const std::string verdict = VerdictName(f.verdict);
    ++counts[static_cast<int>(f.verdict)];
    rows.push_back(
        {{"subject", f.subject}, {"verdict", verdict}, {"found", f.found}, {"advice", f.advice}});
    const auto pad = [](const std::string& s, size_t to) {
      return s + std::string(to > s.size() ? to - s.size() : 0, ' ');
    };
    absl::StrAppend(&text, pad(verdict, 9), pad(f.subject, subject_width + 2), f.found, "\n");
    if (!f.advice.empty()) {
      absl::StrAppend(&text, std::string(9 + subject_width + 2, ' '), "-> ", f.advice, "\n");
    }
  }
  const size_t warnings = counts[static_cast<int>(Verdict::kWarning)];
  const size_t wrong = counts[static_cast<int>(Verdict::kWrong)];
  absl::StrAppend(&text, "\n", wrong, " wrong, ", warnings, " warnings\n");
  Print(flags.output, {{"findings", rows}, {"wrong", wrong}, {"warnings", warnings}}, text);
  return wrong > 0 ? kFailed : kDone;
}

}  // namespace

void AddDoctor(const Verb& app) {
  const Verb verb = app.Add("doctor",
                            "What is misconfigured on this machine: memory, huge pages, limits, "
                            "clock, ports, disk");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server, /*timeout_s=*/5);
  verb.Option("--config", flags->config,
              absl::StrCat("the server's configuration file, where the server does not answer [",
                           kInstalledConfig, "]"));
  verb.Switch("--no-disk", flags->no_disk, "do not measure the disk: that writes 128 MiB");
  AddOutputFlags(verb, flags->output);
  verb.Footer(
      "Run it on the server's machine, as the server's user. Exit code 1: something is wrong.\n\n"
      "Examples:\n  kvstow doctor\n  sudo -u kvstow kvstow doctor\n"
      "  kvstow doctor --config kvstowd.conf --format json | jq '.findings[] | "
      "select(.verdict != \"ok\")'");
  verb.Run([flags] { return Doctor(*flags); });
}

}  // namespace kvstow::cli
