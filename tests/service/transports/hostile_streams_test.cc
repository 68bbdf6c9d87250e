// A storm of streams that are cut, stalled, cancelled or nonsense, and of local sessions that are
// no better. What they leave behind: nothing but whole pages, and a server that goes on.
//
// KVSTOW_HOSTILE_STREAMS sets how many (`ctest --preset slow` has 2,000), KVSTOW_SEED which.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "base/digest.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/local_socket.h"
#include "tests/service/transports/put_fixture.h"

namespace kvstow::testing {
namespace {

int Setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// One call of Put or Get, message by message, as bytes. Whatever it was told, it ends in peace when
// this goes.
class RawCall {
 public:
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, int seconds)
      : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    call_ = stub_.PrepareCall(&context_, "/kvstow.v1.KvCache/" + method, &queue_);
    call_->StartCall(nullptr);
    Wait();
  }
  ~RawCall() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Wait();
  }
  void WritesDone() {
    call_->WritesDone(nullptr);
    Wait();
  }
  // False at the end of the stream.
  bool Read(google::protobuf::MessageLite& message) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    std::vector<grpc::Slice> slices;
    if (!Wait() || !buffer.Dump(&slices).ok()) return false;
    std::string bytes;
    for (const grpc::Slice& s : slices) {
      bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    return message.ParseFromString(bytes);
  }

 private:
  // A server that has nothing to say is cancelled after a moment.
  bool Wait() {
    void* tag;
    bool ok = false;
    const auto moment = std::chrono::system_clock::now() + std::chrono::milliseconds(50);
    if (queue_.AsyncNext(&tag, &ok, moment) == grpc::CompletionQueue::TIMEOUT) {
      context_.TryCancel();
      queue_.Next(&tag, &ok);
    }
    return ok;
  }
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class HostileStreamsTest : public PutTest {
 protected:
  static constexpr int kKeys = 64;

  void SetUp() override {
    config_.local_socket = (folder_ / "local").string();
    config_.lease_ttl = std::chrono::milliseconds(500);
    config_.max_streams = 64;
    PutTest::SetUp();
    for (int i = 0; i < kKeys; ++i) pages_.push_back(Page("k" + std::to_string(i), 1 + i));
  }
  size_t Below(size_t n) { return random_() % n; }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  std::string Noise(size_t bytes) {
    std::string out(bytes, '\0');
    for (char& c : out) c = static_cast<char>(random_());
    return out;
  }
  // As it was, or damaged in one of the ways that a message can be.
  std::string Damaged(std::string bytes) {
    switch (Below(6)) {
      case 0:
        return Noise(Below(200));
      case 1:
        return bytes.substr(0, Below(bytes.size() + 1));
      case 2:
        for (size_t i = 0; i <= Below(4); ++i)
          bytes[Below(std::min<size_t>(bytes.size(), 64))] ^= 1 << Below(8);
        return bytes;
      case 3:
        return bytes + Noise(1 + Below(20));
      default:
        return bytes;
    }
  }

  std::unique_ptr<RawCall> Put() {
    auto call = std::make_unique<RawCall>(client_->channel(), "Put", Chance(0.1) ? 1 : 30);
    if (!call->Write(Chance(0.1) ? Damaged(OpenPut("s").SerializeAsString())
                                 : OpenPut("s").SerializeAsString())) {
      return call;
    }
    for (uint64_t number = 1; number <= 1 + Below(3); ++number) {
      const PageIn& page = pages_[Below(kKeys)];
      const size_t chunk = 1 + Below(page.raw.size());
      std::string message = BeginPage(number, page, page.raw.substr(0, chunk)).SerializeAsString();
      for (size_t offset = chunk;; offset += chunk) {
        if (Chance(0.15)) message = Damaged(std::move(message));
        if (!call->Write(message)) return call;
        if (offset >= page.raw.size() || Chance(0.1)) break;
        v1::PutRequest next;
        next.set_page(number + (Chance(0.03) ? 1 : 0));
        next.set_offset(Chance(0.03) ? random_() : offset);
        next.set_data(page.raw.substr(offset, chunk));
        message = next.SerializeAsString();
      }
    }
    if (Chance(0.5)) return call;
    call->WritesDone();
    v1::PutResponse response;
    while (Chance(0.9) && call->Read(response)) {
    }
    return call;
  }

  std::unique_ptr<RawCall> Get() {
    auto call = std::make_unique<RawCall>(client_->channel(), "Get", Chance(0.1) ? 1 : 30);
    v1::GetRequest request;
    NameSpace("s", *request.mutable_open());
    if (Chance(0.3)) {
      std::vector<std::string> keys;
      for (int i = 0; i < 4; ++i) keys.push_back(pages_[i].key);
      request.mutable_open()->set_lease(client_->Lookup("s", keys, /*lease=*/true).lease());
    }
    for (size_t i = 0; i < 1 + Below(8); ++i) {
      v1::GetPage page = Ask(pages_[Below(kKeys)].key, i + 1);
      if (Chance(0.2)) page.set_first_layer(static_cast<uint32_t>(random_()));
      if (Chance(0.2)) page.set_token_count(static_cast<uint32_t>(random_()));
      *request.add_pages() = page;
    }
    request.set_credit_bytes(Chance(0.3) ? 0 : Chance(0.2) ? ~uint64_t{0} : random_() % (1 << 20));
    std::string message = request.SerializeAsString();
    if (!call->Write(Chance(0.3) ? Damaged(std::move(message)) : message)) return call;
    if (Chance(0.3)) call->WritesDone();
    v1::GetResponse response;
    if (request.credit_bytes() == 0) return call;  // nothing would come
    while (Chance(0.7) && call->Read(response)) {
    }
    return call;
  }

  std::unique_ptr<LocalSocket> Session() {
    auto socket = LocalSocket::Connect(config_.local_socket);
    if (!socket.ok()) return nullptr;
    auto out = std::make_unique<LocalSocket>(*std::move(socket));
    v1::OpenLocalResponse where;
    (void)client_->kv().OpenLocal(client_->Context().get(), {}, &where);
    v1::LocalRequest request;
    request.mutable_hello()->set_token(Chance(0.9) ? where.token() : Noise(16));
    request.mutable_hello()->set_bytes(Chance(0.1) ? random_() : 1 << 18);
    (void)out->Send(request);
    for (size_t i = 0; i < Below(20); ++i) {
      v1::Slot slot;
      slot.set_index(static_cast<uint32_t>(Below(3)));
      slot.set_generation(static_cast<uint32_t>(Below(3)));
      v1::SlotRange range;
      *range.mutable_slot() = slot;
      range.set_offset(Chance(0.2) ? random_() : 0);
      range.set_bytes(Chance(0.2) ? random_() : pages_[0].raw.size());
      switch (Below(4)) {
        case 0:
          request.mutable_allocate()->set_bytes(Chance(0.1) ? random_() : pages_[0].raw.size());
          break;
        case 1:
          *request.mutable_free()->mutable_slot() = slot;
          break;
        case 2: {
          v1::LocalGetPage& get = *request.mutable_get()->add_pages();
          NameSpace("s", *request.mutable_get());
          *get.mutable_page() = Ask(pages_[Below(kKeys)].key);
          *get.mutable_to() = range;
          break;
        }
        default: {
          v1::LocalPutPage& put = *request.mutable_put()->add_pages();
          NameSpace("s", *request.mutable_put());
          // Under keys of its own: what lies in the slot is nobody's page.
          put.mutable_page()->set_key("local" + std::to_string(Below(kKeys)));
          put.mutable_page()->set_tokens(64);
          put.mutable_page()->set_payload_bytes(range.bytes());
          *put.mutable_from() = range;
        }
      }
      if (!out->Send(request).ok()) break;
    }
    return out;
  }

  std::mt19937 random_{static_cast<uint32_t>(Setting("KVSTOW_SEED", 1))};
  std::vector<PageIn> pages_;
};

TEST_F(HostileStreamsTest, LeaveWholePagesAndNothingElse) {
  const int storms = Setting("KVSTOW_HOSTILE_STREAMS", 300);
  constexpr size_t kStalled = 16;
  std::vector<std::unique_ptr<RawCall>> calls(kStalled);  // left open for a while
  std::vector<std::unique_ptr<LocalSocket>> sessions(kStalled);
  for (int i = 0; i < storms; ++i) {
    const size_t place = Below(kStalled);
    const size_t kind = Below(5);
    if (kind == 0) {
      sessions[place] = Session();
    } else {
      calls[place].reset();
      calls[place] = kind <= 2 ? Put() : Get();
    }
  }
  calls.clear();
  sessions.clear();

  EXPECT_TRUE(Eventually([&] {
    return Metric("kvstow_open_streams{method=\"put\"}") == 0 &&
           Metric("kvstow_open_streams{method=\"get\"}") == 0 &&
           Metric("kvstow_local_bytes") == 0 && Metric("kvstow_leases") == 0;
  }));
  EXPECT_EQ(server_->staging().staged_bytes(), 0u);
  EXPECT_EQ(server_->staging().open_tickets(), 0u);
  EXPECT_TRUE(server_->store().residency().CheckInvariants().ok())
      << server_->store().residency().CheckInvariants();
  size_t whole = 0;
  for (const PageIn& page : pages_) {
    const auto got = client_->Get("s", {Ask(page.key)});
    ASSERT_EQ(got.pages.size(), 1u) << got.status.error_message();
    if (got.pages[0].reply.status() == v1::MISS) continue;
    ASSERT_EQ(got.pages[0].reply.status(), v1::HIT) << got.pages[0].reply.message();
    // A damaged chunk is another page, if it is one at all; the right length it has.
    ASSERT_EQ(got.pages[0].data.size(), page.raw.size()) << page.key;
    whole += got.pages[0].data == page.raw ? 1 : 0;
  }
  EXPECT_GT(whole, kKeys / 4) << "some were put as they should be";
}

}  // namespace
}  // namespace kvstow::testing
