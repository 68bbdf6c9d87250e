// A Put stream whose pages wait for a worker: how many do, and what the wait costs others. The test
// holds the only worker.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "tests/service/bare_server.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

constexpr uint64_t kMany = 1000;        // pages of a stream
constexpr size_t kMostWholePages = 64;  // of them that wait for a worker

class PutQueueTest : public ::testing::Test {
 protected:
  PutQueueTest() {
    put_workers_.Submit([turn = free_.get_future().share()] { turn.wait(); });
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<WireClient>("127.0.0.1:" + std::to_string(port));
  }
  ~PutQueueTest() override {
    Free();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  void Free() {
    if (!std::exchange(freed_, true)) free_.set_value();
  }
  static PageIn Page(const std::string& key) {
    return {.key = key, .raw = RandomPage(BareServer::Spec(), 4, 1), .tokens = 4};
  }
  size_t queued() const { return put_workers_.queued(); }
  bool AllAreGone() {
    return Eventually(
        [&] { return bare_.admission().put_bytes() == 0 && bare_.staging().open_tickets() == 0; });
  }

  class Service : public v1::KvCache::WithRawCallbackMethod_Put<v1::KvCache::Service> {
   public:
    explicit Service(StreamParts& parts) : parts_(parts) {}
    RawReactor* Put(grpc::CallbackServerContext* context) override {
      return NewPutStream(parts_, context, std::make_shared<const Caller>());
    }

   private:
    StreamParts& parts_;
  };

  BareServer bare_;
  const LocalParts local_ = bare_.Local();
  WorkerPool put_workers_{"put", 1}, others_{"others", 1};
  StreamParts parts_{local_.spaces,  local_.puts,      local_.reader,
                     local_.metrics, local_.admission, put_workers_,
                     others_,        others_,          {}};
  Service service_{parts_};
  std::promise<void> free_;
  bool freed_ = false;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<WireClient> client_;
};

// A stream of kMany tiny pages, which a thread writes. End() must be called.
class ManyPages {
 public:
  ManyPages(WireClient& client, const PageIn& page)
      : context_(client.Context()), call_(client.kv().Put(context_.get())) {
    call_->Write(OpenPut("exact"));
    writing_ = std::thread([this, page] {
      for (uint64_t i = 1; i <= kMany; ++i) {
        if (!call_->Write(BeginPage(i, page, page.raw))) break;
      }
      call_->WritesDone();
    });
  }
  void Cancel() { context_->TryCancel(); }
  // Reads to the end. Returns the number of results.
  uint64_t End(grpc::StatusCode code) {
    uint64_t results = 0;
    v1::PutResponse response;
    while (call_->Read(&response)) results += response.results_size();
    writing_.join();
    EXPECT_EQ(call_->Finish().error_code(), code);
    return results;
  }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<PutCall> call_;
  std::thread writing_;
};

TEST_F(PutQueueTest, SoManyPagesOfAStreamWaitAndAnotherStreamsPageComesBehindThem) {
  ManyPages many(*client_, Page("many"));
  ASSERT_TRUE(Eventually([&] { return queued() >= kMostWholePages; }));
  // Answers that need no worker: meanwhile the other stream would read on.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client_->Put("exact", {Page("")}).pages.at(0).status(), v1::REFUSED);
  }
  EXPECT_EQ(queued(), kMostWholePages);
  auto other = std::async(std::launch::async,
                          [&] { return client_->Put("exact", {Page("other")}).pages.at(0); });
  EXPECT_TRUE(Eventually([&] { return queued() == kMostWholePages + 1; }));
  Free();
  EXPECT_EQ(other.get().status(), v1::STORED);
  EXPECT_EQ(many.End(grpc::StatusCode::OK), kMany);
  EXPECT_TRUE(AllAreGone());
}

TEST_F(PutQueueTest, ACancelledStreamEndsWithThePagesThatWait) {
  ManyPages many(*client_, Page("many"));
  ASSERT_TRUE(Eventually([&] { return queued() >= kMostWholePages; }));
  many.Cancel();
  EXPECT_EQ(many.End(grpc::StatusCode::CANCELLED), 0u);
  EXPECT_EQ(queued(), kMostWholePages);
  Free();
  EXPECT_TRUE(AllAreGone());
}

TEST_F(PutQueueTest, AStreamThatTheServerEndsGoesWithThePagesThatWait) {
  ManyPages many(*client_, Page("many"));
  ASSERT_TRUE(Eventually([&] { return queued() >= kMostWholePages; }));
  EXPECT_EQ(bare_.admission().EndStreams(Duration::zero()), 1u);
  EXPECT_EQ(queued(), kMostWholePages);
  Free();
  (void)many.End(grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(AllAreGone());
}

}  // namespace
}  // namespace kvstow::testing
