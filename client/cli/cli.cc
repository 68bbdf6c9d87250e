#include "client/cli/cli.h"

#include <iostream>

#include "absl/strings/str_cat.h"

namespace kvstow::cli {

void AddOutputFlags(CLI::App& verb, OutputFlags& flags) {
  verb.add_option("--format", flags.format, "text for people, json for programs")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void AddServerFlags(CLI::App& verb, ServerFlags& flags, double timeout_s) {
  flags.timeout_s = timeout_s;
  verb.add_option("--server", flags.server, "address of kvstowd: HOST:PORT or unix:PATH")
      ->envname("KVSTOW_SERVER")
      ->capture_default_str();
  verb.add_option("--timeout", flags.timeout_s, "seconds that a call may take")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

ClientOptions OptionsOf(const ServerFlags& flags) {
  return {.address = flags.server,
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000)),
          .attempts = 3};
}

std::unique_ptr<Client> Connect(const ServerFlags& flags) {
  return Client::Connect(OptionsOf(flags));
}

void Print(const OutputFlags& flags, const Json& object, const std::string& text) {
  if (flags.json()) {
    std::cout << object.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << text << std::flush;
  }
}

int Fail(const OutputFlags& flags, const absl::Status& status) {
  std::cerr << "kvstow: " << status.message() << std::endl;
  if (flags.json()) Print(flags, {{"error", std::string(status.message())}}, "");
  return kFailed;
}

}  // namespace kvstow::cli
