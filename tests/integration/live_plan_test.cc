// A trace replayed against the real server: what the planner foretold, what the server did, and
// what the server itself estimates of sizes that it does not have.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "client/planner/reuse_curve.h"
#include "tests/integration/process.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using Json = nlohmann::json;

const std::string kTrace = TestsPath("data/mooncake_conversation_1000.jsonl.gz");
const std::string kCase = TestsPath("data/smollm2-wiki-256.safetensors");
constexpr uint64_t kBlocks = 4000;  // that the server has room for

// Pages as small as they get: it is their number that counts here.
KvSpec TinySpec() {
  KvSpec spec;
  spec.model = "test/tiny";
  spec.revision = kUnversioned;
  spec.layers = spec.kv_heads = 1;
  spec.head_dim_k = spec.head_dim_v = 64;
  spec.page_tokens = 8;
  return spec;
}

// A worker looks each prompt up, fetches what is there, and stores the rest.
class Worker {
 public:
  explicit Worker(const std::string& address) : client_(Client::Connect({.address = address})) {
    EXPECT_TRUE(client_->OpenSpace({.name = "s", .spec = spec_, .recipe = "raw"}).ok());
  }

  void Serve(const TraceRequest& request) {
    std::vector<std::string> keys;
    for (const uint64_t block : request.blocks) {
      keys.push_back(std::string(reinterpret_cast<const char*>(&block), sizeof(block)));
    }
    const PrefixHit hit = client_->Lookup("s", keys);
    ASSERT_TRUE(hit.status.ok()) << hit.status;
    hits_ += hit.pages;
    if (hit.pages > 0) {
      Fetch fetch(spec_, std::vector<std::string>(keys.begin(), keys.begin() + hit.pages));
      client_->Get("s", hit.lease, fetch.gets).wait();
      ASSERT_TRUE(client_->Release(hit.lease).ok());
    }
    std::vector<PagePut> puts;
    for (size_t i = hit.pages; i < keys.size(); ++i) {
      puts.push_back({.key = keys[i],
                      .raw = raw_,
                      .tokens = spec_.page_tokens,
                      .first_position = i * spec_.page_tokens});
    }
    if (puts.empty()) return;
    for (const PutResult& put : client_->Put("s", std::move(puts)).get()) {
      if (put.outcome == PageOutcome::kStored) stored_bytes_ = put.stored_bytes;
    }
  }

  uint64_t hits() const { return hits_; }
  uint64_t stored_bytes() const { return stored_bytes_; }  // of a page

 private:
  const KvSpec spec_ = TinySpec();
  const std::vector<uint8_t> raw_ = std::vector<uint8_t>(PageBytes(spec_, spec_.page_tokens));
  std::unique_ptr<Client> client_;
  uint64_t hits_ = 0, stored_bytes_ = 0;
};

TEST(LivePlan, TheServerDoesWhatThePlannerForetoldAndEstimatesTheSame) {
  const auto trace = LoadTrace(kTrace);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const planner::ReuseCurve curve = planner::MeasureLoad(*trace).curve;

  uint64_t page_bytes = 0;
  {
    Daemon probe("127.0.0.1:0", {"--host-bytes", "1MiB"});
    Worker worker(probe.address());
    worker.Serve(trace->requests[0]);
    page_bytes = worker.stored_bytes();
  }
  ASSERT_GT(page_bytes, 0u);
  // The planner's model; the server's own policy hits more.
  Daemon server("127.0.0.1:0",
                {"--host-bytes", std::to_string(kBlocks * page_bytes), "--eviction-policy", "lru"});
  Worker worker(server.address());
  for (const TraceRequest& request : trace->requests) worker.Serve(request);

  // Demotion begins at 95 % of the budget and ends at 90 %.
  const double rate = static_cast<double>(worker.hits()) / static_cast<double>(trace->references);
  RecordProperty("hit_rate", std::to_string(rate));
  EXPECT_GE(rate, curve.HitRate(kBlocks * 85 / 100) - 0.02);
  EXPECT_LE(rate, curve.HitRate(kBlocks) + 0.02);

  const Finished run = RunKvstow({"plan", "--server", server.address(), "--format", "json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json plan = Json::parse(run.out, nullptr, false);
  EXPECT_EQ(plan["load"]["references"], trace->references);
  EXPECT_NEAR(plan["infinite_hit_rate"], curve.InfiniteHitRate(), 0.02);
  const double factors[] = {0.5, 1, 2, 4};
  ASSERT_EQ(plan["curve"].size(), std::size(factors));
  for (size_t i = 0; i < std::size(factors); ++i) {
    const auto blocks = static_cast<uint64_t>(factors[i] * kBlocks);
    EXPECT_NEAR(plan["curve"][i]["hit_rate"], curve.HitRate(blocks), 0.02) << factors[i];
  }
}

std::vector<std::string> ReplayOf(const std::string& server, const char* requests) {
  return {"replay", kTrace,       "--server", server,     "--layers", "1",        "--page-tokens",
          "8",      "--requests", requests,   "--recipe", "raw",      "--format", "json"};
}

TEST(Replay, HitsWhatACacheOfThatSizeHitsAndSaysFromWhichTier) {
  auto trace = LoadTrace(kTrace);
  ASSERT_TRUE(trace.ok()) << trace.status();
  trace->requests.resize(300);
  std::set<uint64_t> seen;
  uint64_t blocks = 0, hits = 0;
  for (const TraceRequest& request : trace->requests) {
    blocks += request.blocks.size();
    for (const uint64_t block : request.blocks) hits += seen.contains(block) ? 1 : 0;
    seen.insert(request.blocks.begin(), request.blocks.end());
  }

  Daemon server("127.0.0.1:0", {"--host-bytes", "256MiB"});
  const Finished run = RunKvstow(ReplayOf(server.address(), "300"));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json replay = Json::parse(run.out, nullptr, false);
  EXPECT_EQ(replay["requests"], 300);
  EXPECT_EQ(replay["blocks"], blocks);
  EXPECT_DOUBLE_EQ(replay["hit_rate"], static_cast<double>(hits) / static_cast<double>(blocks))
      << "there is room for all";
  EXPECT_EQ(replay["hit_rate_by_tier"]["host"], replay["hit_rate"]);
  EXPECT_EQ(replay["stored"], seen.size());
  EXPECT_EQ(replay["lost"], 0);
  EXPECT_EQ(replay["refused"], 0);
  EXPECT_EQ(replay["lookup"]["calls"], 300);
  // A second time all of it is there; faster than the trace, and in its pace.
  auto again = ReplayOf(server.address(), "30");
  again.insert(again.end(), {"--rate", "100", "--clients", "2"});
  const Finished second = RunKvstow(again);
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const Json all = Json::parse(second.out, nullptr, false);
  EXPECT_EQ(all["hit_rate"], 1.0);
  EXPECT_GE(all["seconds"], trace->requests[29].time_s / 100);
}

TEST(Replay, WhatIsWrongIsNamed) {
  auto nobody = ReplayOf("127.0.0.1:1", "3");
  nobody.insert(nobody.end(), {"--timeout", "1"});
  const Finished run = RunKvstow(nobody);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("is kvstowd running"), std::string::npos) << run.err;
  EXPECT_EQ(RunKvstow({"replay", "no-such-file"}).exit_code, 1);
  const Finished large = RunKvstow({"replay", kTrace, "--content", kCase});
  EXPECT_EQ(large.exit_code, 2);
  EXPECT_NE(large.err.find("--page-tokens"), std::string::npos) << large.err;
}

}  // namespace
}  // namespace kvstow
