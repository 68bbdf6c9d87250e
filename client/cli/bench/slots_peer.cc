// Shared memory whose control messages are unary gRPC calls: what a local session would be without
// a socket of its own. The server runs within this process; a value is copied once, between its
// store and the caller's buffer, as it would be between processes that share that.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/cli/bench/peer.h"

namespace kvstow::cli {
namespace {

// A request, about as long as one that names pages and slots; the answer is as long.
struct Request {
  const Item* items;
  uint64_t count, put;
  uint8_t names_and_slots[40];
};

grpc::ByteBuffer Message(const Request& request) {
  const grpc::Slice slice(&request, sizeof(request));
  return grpc::ByteBuffer(&slice, 1);
}

class Values {
 public:
  grpc::Status Serve(const grpc::ByteBuffer& message) {
    grpc::Slice slice;
    Request request;
    if (!message.DumpToSingleSlice(&slice).ok() || slice.size() != sizeof(request)) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "not a request"};
    }
    std::memcpy(&request, slice.begin(), sizeof(request));
    for (const Item& item : std::span(request.items, request.count)) {
      std::vector<uint8_t>& value = Of(item.key);
      if (request.put != 0) {
        value.assign(item.value.begin(), item.value.end());
      } else if (value.size() == item.value.size()) {
        std::memcpy(item.value.data(), value.data(), value.size());
      } else {
        return {grpc::StatusCode::NOT_FOUND, item.key};
      }
    }
    return grpc::Status::OK;
  }
  void Erase(const std::string& key) {
    MutexLock lock(mu_);
    values_.erase(key);
  }

 private:
  std::vector<uint8_t>& Of(const std::string& key) {
    MutexLock lock(mu_);
    return values_[key];
  }

  Mutex mu_;
  std::map<std::string, std::vector<uint8_t>> values_ KVSTOW_GUARDED_BY(mu_);
};

class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(Values& values) : values_(values) {}

 private:
  class Call final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(Values& values) : values_(values) { StartRead(&message_); }
    void OnReadDone(bool ok) override {
      const grpc::Status status = ok ? values_.Serve(message_) : grpc::Status::CANCELLED;
      if (!status.ok()) return Finish(status);
      StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    Values& values_;
    grpc::ByteBuffer message_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Call(values_);
  }
  Values& values_;
};

class SlotsSession final : public Session {
 public:
  SlotsSession(const std::string& address, Values& values)
      : values_(values), stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {}

  absl::Status Put(std::span<const Item> items) override { return Ask(items, 1); }
  absl::Status Get(std::span<const Item> items) override { return Ask(items, 0); }
  absl::Status Delete(const std::string& key) override {
    values_.Erase(key);
    return absl::OkStatus();
  }

 private:
  absl::Status Ask(std::span<const Item> items, uint64_t put) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const grpc::ByteBuffer request =
        Message({.items = items.data(), .count = items.size(), .put = put, .names_and_slots = {}});
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto call = stub_.PrepareUnaryCall(&context, "/Slots/Serve", request, &queue_);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  Values& values_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
};

class SlotsPeer final : public Peer {
 public:
  explicit SlotsPeer(const std::string& folder)
      : address_(absl::StrCat("unix:", folder, "/slots.sock")) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~SlotsPeer() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  bool started() const { return server_ != nullptr; }
  std::string name() const override { return kGrpcSlots; }
  absl::StatusOr<std::unique_ptr<Session>> Connect() override {
    return std::make_unique<SlotsSession>(address_, values_);
  }
  double CpuSeconds() const override { return 0; }

 private:
  const std::string address_;
  Values values_;
  Service service_{values_};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> StartGrpcSlots(const PeerOptions& options) {
  auto peer = std::make_unique<SlotsPeer>(options.folder);
  if (!peer->started()) return absl::UnavailableError("no server for gRPC-controlled slots");
  return peer;
}

}  // namespace kvstow::cli
