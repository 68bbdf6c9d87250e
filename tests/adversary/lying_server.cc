#include "tests/adversary/lying_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shared_memory.h"
#include "kvstow/v1/kv_cache.grpc.pb.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/local_socket.h"
#include "proto/wire/spec.h"
#include "tests/service/bare_server.h"

namespace kvstow {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);
constexpr size_t kSharedBytes = 1 << 20;

constexpr char kSparse[] =
    "key_diversity|protect(first=2,last=4)|budget(keep=0.25)|affine(bits=8,group=64)";

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

// Takes connections and has each served by a thread of its own.
template <typename Socket>
class Connections {
 public:
  Connections(Socket listening, std::function<void(const Socket&)> serve)
      : listening_(std::move(listening)) {
    accepting_ = std::thread([this, serve = std::move(serve)] {
      std::vector<std::thread> serving;
      for (;;) {
        auto socket = listening_.Accept();
        if (!socket.ok()) break;
        serving.emplace_back([serve, s = std::make_shared<Socket>(*std::move(socket))] {
          serve(*s);
          s->HangUp();
        });
      }
      for (std::thread& thread : serving) thread.join();
    });
  }
  ~Connections() {
    listening_.HangUp();
    accepting_.join();
  }
  const Socket& listening() const { return listening_; }

 private:
  const Socket listening_;
  std::thread accepting_;
};

}  // namespace

class LyingServer::Direct {
 public:
  explicit Direct(LyingServer& liar)
      : connections_(*DirectSocket::Listen("127.0.0.1", 0),
                     [&liar](const DirectSocket& socket) { Serve(liar, socket); }) {}
  int port() const { return connections_.listening().port(); }

 private:
  static void Serve(LyingServer& liar, const DirectSocket& socket) {
    v1::DirectRequest request;
    uint64_t bytes = 0;
    while (socket.ReceiveFrame(request, bytes, Clock::Real().Now() + kLong).ok()) {
      const v1::DirectGet& get = request.get();
      for (const v1::GetPage& page : get.pages()) {
        Told told = liar.Tell(LyingWay::kDirect, get.space(), get.payload(), page);
        v1::DirectReply reply;
        *reply.mutable_got() = std::move(told.reply);
        const SharedBytes payload[] = {SharedBytes::CopyOf(AsBytes(told.payload))};
        if (!socket.Send(reply, payload, 0, Clock::Real().Now() + kLong).ok()) return;
      }
    }
  }

  Connections<DirectSocket> connections_;
};

class LyingServer::Shared {
 public:
  explicit Shared(LyingServer& liar)
      : path_(absl::StrCat(::testing::TempDir(), "kvstow-liar-", getpid())),
        connections_(*LocalSocket::Listen(path_),
                     [&liar](const LocalSocket& socket) { Serve(liar, socket); }) {}
  ~Shared() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static void Serve(LyingServer& liar, const LocalSocket& socket) {
    const SharedMemory memory = *SharedMemory::Create(kSharedBytes);
    uint64_t used = 0;
    std::vector<uint64_t> slots;  // where they begin
    v1::LocalRequest request;
    while (socket.Receive(request, kLong).ok()) {
      v1::LocalReply reply;
      if (request.has_hello()) {
        reply.mutable_welcome()->set_bytes(kSharedBytes);
        if (!socket.Send(reply, memory.descriptor()).ok()) return;
      } else if (request.has_allocate()) {
        reply.mutable_slot()->set_request(request.allocate().request());
        reply.mutable_slot()->mutable_slot()->set_index(static_cast<uint32_t>(slots.size()));
        reply.mutable_slot()->set_offset(used);
        reply.mutable_slot()->set_bytes(request.allocate().bytes());
        slots.push_back(used);
        used += (request.allocate().bytes() + kSharedPageBytes - 1) / kSharedPageBytes *
                kSharedPageBytes;
        if (!socket.Send(reply).ok()) return;
      }
      for (const v1::LocalGetPage& page : request.get().pages()) {
        Told told = liar.Tell(LyingWay::kShared, request.get().space(), v1::RAW, page.page());
        const size_t kept = std::min<size_t>(told.reply.kept().bytes(), told.payload.size());
        const absl::string_view raw(told.payload.data(), told.payload.size() - kept);
        std::ranges::copy(AsBytes(raw), memory.bytes().begin() + slots[page.to().slot().index()] +
                                            page.to().offset());
        reply.mutable_got()->set_page(page.page().page());
        reply.mutable_got()->set_kept(told.payload.substr(raw.size()));
        *reply.mutable_got()->mutable_reply() = std::move(told.reply);
        if (!socket.Send(reply).ok()) return;
      }
    }
  }

  const std::string path_;
  Connections<LocalSocket> connections_;
};

class LyingServer::Cache final : public v1::KvCache::Service {
 public:
  explicit Cache(LyingServer& liar) : liar_(liar), direct_(liar), shared_(liar) {}

 private:
  grpc::Status OpenSpace(grpc::ServerContext*, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceResponse* response) override;
  grpc::Status OpenDirect(grpc::ServerContext*, const v1::OpenDirectRequest*,
                          v1::OpenDirectResponse* response) override {
    response->set_port(direct_.port());
    return grpc::Status::OK;
  }
  grpc::Status OpenLocal(grpc::ServerContext*, const v1::OpenLocalRequest*,
                         v1::OpenLocalResponse* response) override {
    response->set_socket(shared_.path());
    response->set_token(std::string(16, 't'));
    return grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*,
                   grpc::ServerReaderWriter<v1::GetResponse, v1::GetRequest>* stream) override {
    v1::GetRequest request;
    v1::GetOpen open;
    while (stream->Read(&request)) {
      if (request.has_open()) open = request.open();
      for (const v1::GetPage& page : request.pages()) {
        Told told = liar_.Tell(LyingWay::kStream, open.space(), open.payload(), page);
        v1::GetResponse response;
        response.set_page(page.page());
        *response.mutable_begin() = std::move(told.reply);
        response.set_data(std::move(told.payload));
        if (!stream->Write(response)) return grpc::Status::OK;
      }
    }
    return grpc::Status::OK;
  }

  LyingServer& liar_;
  Direct direct_;
  Shared shared_;
};

struct LyingServer::Parts {
  explicit Parts(LyingServer& liar) : cache(liar) {}
  testing::BareServer bare;
  DirectParts honest = bare.Direct();
  Cache cache;
  std::unique_ptr<grpc::Server> server;
};

grpc::Status LyingServer::Cache::OpenSpace(grpc::ServerContext*,
                                           const v1::OpenSpaceRequest* request,
                                           v1::OpenSpaceResponse* response) {
  return ToGrpc(liar_.parts_->honest.op.OpenSpace(Caller{}, *request, *response));
}

LyingServer::LyingServer() : parts_(std::make_unique<Parts>(*this)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&parts_->cache);
  parts_->server = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port);
}

LyingServer::~LyingServer() { parts_->server->Shutdown(); }

void LyingServer::Put(const Prompt& prompt) {
  ASSERT_EQ(prompt.keys.size(), 2u);
  others_ = {{prompt.keys[0], prompt.keys[1]}, {prompt.keys[1], prompt.keys[0]}};
  for (const auto& [name, recipe] :
       {std::pair{"raw", "raw"}, std::pair{"int8", "int8"}, std::pair{"sparse", kSparse}}) {
    v1::OpenSpaceRequest request;
    v1::OpenSpaceResponse response;
    request.set_space(name);
    request.set_recipe(recipe);
    if (request.recipe() == kSparse) request.set_fidelity(v1::SPARSE);
    ToProto(prompt.spec, *request.mutable_spec());
    const absl::Status opened = parts_->honest.op.OpenSpace(Caller{}, request, response);
    ASSERT_TRUE(opened.ok()) << opened;
    const auto space = parts_->honest.spaces.Find(Caller{}, request.space(), response.fingerprint(),
                                                  SpaceUse::kRead);
    for (const PagePut& put : prompt.Puts()) {
      v1::PutPage page;
      page.set_key(put.key);
      page.set_tokens(put.tokens);
      page.set_first_position(put.first_position);
      page.set_payload_bytes(put.raw.size());
      IncomingPage incoming(parts_->honest.puts, **space, "", v1::RAW, page, /*parent_key=*/"");
      ASSERT_FALSE(incoming.Begin().has_value());
      const v1::PutResult result = incoming.Store(SharedBytes::CopyOf(put.raw));
      ASSERT_EQ(result.status(), v1::STORED) << result.message();
    }
  }
}

void LyingServer::TellLies(Lie lie, const std::map<LyingWay, int>& how_many) {
  const std::lock_guard lock(mu_);
  lie_ = std::move(lie);
  counts_ = {};
  for (const auto& [transport, n] : how_many) counts_[static_cast<size_t>(transport)].left = n;
}

int LyingServer::lies_told(LyingWay transport) const {
  const std::lock_guard lock(mu_);
  return counts_[static_cast<size_t>(transport)].told;
}

int LyingServer::replies(LyingWay transport) const {
  const std::lock_guard lock(mu_);
  return counts_[static_cast<size_t>(transport)].replies;
}

Told LyingServer::Tell(LyingWay transport, const std::string& space, v1::Payload payload,
                       const v1::GetPage& asked) {
  const auto fetch = [&](const std::string& key) {
    v1::GetPage request = asked;
    request.set_key(key);
    FetchedPage page = parts_->honest.reader.Fetch(**parts_->honest.spaces.Find(Caller{}, space),
                                                   {}, payload, request, Checks::kStore);
    Told told{std::move(page.reply), ""};
    for (const SharedBytes& part : page.payload)
      absl::StrAppend(&told.payload, AsString(part.span()));
    return told;
  };
  Told told = fetch(asked.key());
  const Told other = fetch(others_.at(asked.key()));
  const std::lock_guard lock(mu_);
  Count& count = counts_[static_cast<size_t>(transport)];
  ++count.replies;
  if (count.left == 0) return told;
  --count.left;
  ++count.told;
  lie_(told, other);
  return told;
}

}  // namespace kvstow
