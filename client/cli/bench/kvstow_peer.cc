// kvstowd, as a worker uses it: the client library, a client a session.
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/bench/peer.h"
#include "client/cli/bench/socket.h"
#include "client/client.h"

namespace kvstow::cli {
namespace {

constexpr char kSpace[] = "compare";

absl::Status Expect(PageOutcome got, PageOutcome wanted, const std::string& message) {
  if (got == wanted) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a page was ", OutcomeName(got), ": ", message));
}

class KvstowSession final : public Session {
 public:
  KvstowSession(std::unique_ptr<Client> client, const KvSpec& spec)
      : client_(std::move(client)), tokens_(spec.page_tokens) {}

  absl::Status Put(std::span<const Item> items) override {
    std::vector<PagePut> pages;
    for (const Item& item : items) {
      pages.push_back({.key = item.key, .raw = item.value, .tokens = tokens_});
    }
    for (const PutResult& result : client_->Put(kSpace, std::move(pages)).get()) {
      KVSTOW_RETURN_IF_ERROR(Expect(result.outcome, PageOutcome::kStored, result.message));
    }
    return absl::OkStatus();
  }
  absl::Status Get(std::span<const Item> items) override {
    std::vector<PageGet> pages;
    for (const Item& item : items) pages.push_back({.key = item.key, .out = item.value});
    for (const GetResult& result : client_->Get(kSpace, 0, std::move(pages)).get()) {
      KVSTOW_RETURN_IF_ERROR(Expect(result.outcome, PageOutcome::kHit, result.message));
    }
    return absl::OkStatus();
  }
  absl::Status Delete(const std::string& key) override {
    return client_->Delete(kSpace, std::span(&key, 1), /*force=*/true).status();
  }
  absl::Status LookUp(std::span<const Item> items) override {
    std::vector<std::string> keys;
    for (const Item& item : items) keys.push_back(item.key);
    const PrefixHit hit = client_->Lookup(kSpace, keys);
    KVSTOW_RETURN_IF_ERROR(hit.status);
    if (hit.pages == items.size()) return client_->Release(hit.lease);
    return absl::NotFoundError(
        absl::StrCat("only ", hit.pages, " of ", items.size(), " pages are there"));
  }
  // Shared with the server where that offers it.
  std::span<uint8_t> Buffer(size_t bytes) override {
    buffer_ = client_->NewBuffer(bytes);
    return buffer_->bytes();
  }

 private:
  const std::unique_ptr<Client> client_;
  std::unique_ptr<PageBuffer> buffer_;
  const uint32_t tokens_;
};

class KvstowPeer final : public Peer {
 public:
  KvstowPeer(std::string name, std::string address, KvstowOptions options,
             std::unique_ptr<Child> child)
      : name_(std::move(name)),
        address_(std::move(address)),
        options_(std::move(options)),
        child_(std::move(child)) {}

  std::string name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Session>> Connect() override {
    // When this returns, the server listens.
    KVSTOW_RETURN_IF_ERROR(Socket::Connect(address_).status());
    std::unique_ptr<Client> client = Client::Connect(
        {.address = address_,
         .timeout = std::chrono::seconds(30),
         .payload = options_.encoded ? Payload::kEncoded : Payload::kRaw,
         .direct_connections = options_.streams ? 0 : ClientOptions().direct_connections});
    KVSTOW_RETURN_IF_ERROR(
        client->OpenSpace({.name = kSpace, .spec = options_.spec, .recipe = options_.recipe})
            .status());
    return std::make_unique<KvstowSession>(std::move(client), options_.spec);
  }
  double CpuSeconds() const override { return child_->CpuSeconds(); }

 private:
  const std::string name_, address_;
  const KvstowOptions options_;
  const std::unique_ptr<Child> child_;
};

std::string ServerProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = self.parent_path() / "kvstowd";
  return std::filesystem::exists(beside, error) ? beside.string() : "kvstowd";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> StartKvstowd(const std::string& address, uint64_t host_bytes,
                                                    const std::vector<std::string>& more,
                                                    const std::string& log) {
  std::vector<std::string> argv = {ServerProgram(),         "--listen", address,
                                   "--http-listen",         "off",      "--host-bytes",
                                   absl::StrCat(host_bytes)};
  argv.insert(argv.end(), more.begin(), more.end());
  return Child::Start(argv, log);
}

absl::StatusOr<std::unique_ptr<Peer>> StartKvstow(const PeerOptions& options,
                                                  const KvstowOptions& kvstow) {
  const std::string id =
      absl::StrCat("kvstow-", kvstow.recipe, options.local ? "-unix" : "",
                   kvstow.shared ? "-shared" : "", kvstow.streams ? "-streams" : "");
  std::string address = absl::StrCat("unix:", options.folder, "/", id, ".sock");
  if (!options.local) {
    KVSTOW_ASSIGN_OR_RETURN(const int port, PortForAServer(options.host));
    address = absl::StrCat(options.host, ":", port);
  }
  std::vector<std::string> more;
  if (options.host != kLoopback) more = {"--insecure"};
  if (kvstow.shared) more = {"--local-socket", absl::StrCat(options.folder, "/", id, ".local")};
  KVSTOW_ASSIGN_OR_RETURN(auto child, StartKvstowd(address, options.budget_bytes, more,
                                                   absl::StrCat(options.folder, "/", id, ".log")));
  const std::string name = absl::StrCat(
      "kvstow ", kvstow.recipe, kvstow.encoded ? " encoded" : "", options.local ? ", UNIX" : "",
      kvstow.shared ? ", shared memory" : "", kvstow.streams ? ", gRPC streams" : "");
  return std::make_unique<KvstowPeer>(name, address, kvstow, std::move(child));
}

}  // namespace kvstow::cli
