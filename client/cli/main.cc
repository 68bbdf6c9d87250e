// kvstow: the command line of the service.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "client/cli/cli.h"

namespace kvstow::cli {
namespace {

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
