// kvstow: the command line of the service.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli/cli.h"

namespace kvstow::cli {
namespace {

// Returns what is said of a flag that the verb does not have, or "". CLI11 itself may blame the
// words beside it, or a flag that is missing because this one is misspelt.
std::string WhichFlag(const CLI::App& app) {
  std::string path = "kvstow";
  const CLI::App* at = &app;
  for (;;) {
    for (const std::string& word : at->remaining()) {
      if (word.size() < 2 || word[0] != '-') continue;
      const std::string flag = word.substr(0, word.find('='));
      if (at == &app)
        return "there is no flag " + flag + " before a verb: flags of verbs follow it";
      return "there is no flag " + flag + ": `" + path + " --help` lists them";
    }
    const std::vector<CLI::App*> verbs = at->get_subcommands();
    if (verbs.empty()) return "";
    at = verbs[0];
    path += " " + at->get_name();
  }
}

int Main(int argc, char** argv) {
  CLI::App app(
      "kvstow keeps the KV cache of language models outside the inference workers.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong use, 3 a miss.");
  app.name("kvstow");
  app.set_version_flag("--version", KVSTOW_VERSION);
  app.require_subcommand(0, 1);  // none is told below: CLI11 would not name a verb it does not know
  app.footer(
      "Examples:\n  kvstow put --space smollm2 prompt.safetensors\n"
      "  kvstow get --space smollm2 prompt.safetensors decoded.safetensors\n"
      "  kvstow VERB --help");
  int exit_code = kDone;
  for (const auto add :
       {AddPing,   AddStatus, AddStats, AddTop,      AddSpaces, AddPut,    AddGet,
        AddReport, AddExists, AddDel,   AddDrop,     AddPin,    AddEvict,  AddBudget,
        AddQuota,  AddTenant, AddDrain, AddFlush,    AddVerify, AddDoctor, AddSummaries,
        AddCodec,  AddBench,  AddPlan,  AddSimulate, AddReplay}) {
    add(Verb(app, exit_code));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const std::string flag = e.get_exit_code() == 0 ? "" : WhichFlag(app);
    if (!flag.empty()) {
      std::cerr << "kvstow: " << flag << std::endl;
      return kWrongUse;
    }
    return app.exit(e) == 0 ? kDone : kWrongUse;
  }
  if (app.get_subcommands().empty()) {
    std::cerr << app.help();
    return kWrongUse;
  }
  return exit_code;
}

}  // namespace
}  // namespace kvstow::cli

// The libraries behind flags and JSON may throw; no user should meet a terminate() message.
int main(int argc, char** argv) {
  try {
    return kvstow::cli::Main(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "kvstow: " << e.what() << std::endl;
    return kvstow::cli::kFailed;
  }
}
