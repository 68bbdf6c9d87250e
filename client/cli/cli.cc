#include "client/cli/cli.h"

#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/connection_flags.h"

namespace kvstow::cli {

void AddOutputFlags(const Verb& verb, OutputFlags& flags) {
  verb.Option("--format", flags.format, "text for people, json for programs")
      .OneOf({"text", "json"})
      .ShowDefault();
}

namespace {

std::string NotOneServer(const std::string& address) {
  if (!absl::StrContains(address, ",") && !absl::StartsWith(address, "dns:")) return "";
  return absl::StrCat("'", address, "' names several servers, and this changes one: name that one");
}

}  // namespace

void AddServerFlags(const Verb& verb, ServerFlags& flags, double timeout_s) {
  verb.Option("--server", flags.server,
              "address of kvstowd: HOST:PORT or unix:PATH; or several, of which the first that "
              "serves is taken: unix:/run/kvstow/kvstow.sock,10.0.0.1:7380 or dns:///NAME:PORT")
      .FromEnvironment("KVSTOW_SERVER")
      .ShowDefault();
  flags.timeout_s = timeout_s;
  AddConnectionFlags(verb, flags.tls, flags.token_file, flags.timeout_s);
}

void AddOneServerFlags(const Verb& verb, ServerFlags& flags, double timeout_s) {
  verb.Option("--server", flags.server, "address of kvstowd: HOST:PORT or unix:PATH")
      .FromEnvironment("KVSTOW_SERVER")
      .Check(NotOneServer)
      .ShowDefault();
  flags.timeout_s = timeout_s;
  AddConnectionFlags(verb, flags.tls, flags.token_file, flags.timeout_s);
}

ClientOptions OptionsOf(const ServerFlags& flags) {
  return {.address = flags.server,
          .tls = flags.tls,
          .token_file = flags.token_file,
          .traceparent =
              [] {
                const char* const parent = std::getenv("TRACEPARENT");
                return std::string(parent == nullptr ? "" : parent);
              },
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
