// Calibrations that workers send, and spaces whose policy reads statistics of queries: which ones
// is part of the space, and a restart keeps them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/importance/query_scores.h"
#include "kernels/importance/query_tables.h"
#include "kernels/methods/kept_tokens.h"
#include "proto/wire/chunk.h"
#include "proto/wire/spec.h"
#include "service/spaces/calibrations.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kTokens = 64;
constexpr char kExpected[] = "expected-attention(keep=0.5)|int8";

// Statistics of two query heads a KV head. Each seed means other directions.
QueryStatistics Statistics(uint32_t seed) {
  const KvSpec spec = SmallSpec();
  QueryStatistics q{.layers = spec.layers, .heads = 2 * spec.kv_heads, .dim = spec.head_dim_k};
  const size_t heads = size_t{q.layers} * q.heads;
  for (size_t i = 0; i < heads * q.dim; ++i) {
    q.mean.push_back(std::sin(static_cast<float>((i + 1) * (seed + 1))) * 3);
  }
  for (size_t i = 0; i < heads * q.dim * q.dim; ++i) {
    q.covariance.push_back(i / q.dim % q.dim == i % q.dim ? 0.5F : 0.0F);
  }
  q.magnitude.assign(heads * (q.dim / 2), 1.0F);
  FindDirections(q);
  return q;
}
std::string Blob(uint32_t seed) { return *QueryCalibration(SmallSpec(), Statistics(seed)); }
std::string IdOf(const std::string& blob) {
  const Sha256Digest hash = Sha256(AsBytes(blob));
  return std::string(reinterpret_cast<const char*>(hash.data()), sizeof(CalibrationId));
}

class QueriesTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.disk_path = DiskPath();
    config_.disk_bytes = 64 << 20;
    options_.clock = &clock_;
    page_ = {.key = "p", .raw = RandomPage(SmallSpec(), kTokens, 1), .tokens = kTokens};
    StartServer();
  }
  void Restart() {
    StopServer();
    StartServer();
  }
  grpc::Status Send(const std::string& blob, v1::SendCalibrationResponse* out = nullptr,
                    size_t piece = 1000) {
    v1::SendCalibrationResponse response;
    const auto context = client_->Context();
    auto writer = client_->kv().SendCalibration(context.get(), &response);
    v1::SendCalibrationRequest request;
    for (size_t at = 0; at < blob.size(); at += piece) {
      request.set_data(blob.substr(at, piece));
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    if (out != nullptr) *out = response;
    return status;
  }
  grpc::Status Open(const std::string& space, const std::string& recipe, const std::string& queries,
                    v1::OpenSpaceResponse* out = nullptr) {
    v1::OpenSpaceRequest request;
    request.set_space(space);
    request.set_recipe(recipe);
    request.set_queries(queries);
    request.set_fidelity(v1::SPARSE);
    ToProto(SmallSpec(), *request.mutable_spec());
    v1::OpenSpaceResponse response;
    return client_->kv().OpenSpace(client_->Context().get(), request,
                                   out != nullptr ? out : &response);
  }
  // The codec alone makes this of the page with these statistics, and keeps these tokens.
  std::string Local(const std::string& recipe, uint32_t seed) {
    const QueryStatistics queries = Statistics(seed);
    const auto codec = MakeCodec(*ParseRecipe(recipe), SmallSpec());
    const auto page =
        (*codec)->Encode({.raw = AsBytes(page_.raw), .tokens = kTokens, .queries = &queries});
    EXPECT_TRUE(page.ok()) << page.status();
    std::string out(page_.raw.size(), '\0');
    EXPECT_TRUE(DecodePage(page->header, page->segments,
                           {reinterpret_cast<uint8_t*>(out.data()), out.size()})
                    .ok());
    const std::vector<std::optional<SharedBytes>> all(page->segments.begin(), page->segments.end());
    ByteWriter kept;
    WriteKept(KeptTokens(page->header, all).value().value(), {0, SmallSpec().layers}, kept);
    return out + std::move(kept).Take();
  }

  PageIn page_;
};

TEST_F(QueriesTest, ASpaceReadsWhatWasSentAlsoAfterARestart) {
  v1::SendCalibrationResponse sent;
  ASSERT_TRUE(Send(Blob(1), &sent).ok());
  EXPECT_EQ(sent.calibration(), IdOf(Blob(1)));
  EXPECT_FALSE(sent.already_there());
  ASSERT_TRUE(Send(Blob(1), &sent, 1 << 20).ok());
  EXPECT_TRUE(sent.already_there());
  v1::OpenSpaceResponse opened;
  ASSERT_TRUE(Open("s", kExpected, sent.calibration(), &opened).ok());
  EXPECT_THAT(opened.pipeline(), HasSubstr("blob=" + HexOf(AsBytes(sent.calibration()))));
  ASSERT_EQ(client_->Put("s", {page_}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("s", {Ask("p")}).pages[0].data, Local(kExpected, 1));

  // Others that would fit come too: the space keeps to its own.
  ASSERT_TRUE(Send(Blob(2)).ok());
  ASSERT_TRUE(Open("t", kExpected, IdOf(Blob(2))).ok());
  ASSERT_EQ(client_->Put("t", {page_}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("t", {Ask("p")}).pages[0].data, Local(kExpected, 2));
  EXPECT_NE(Local(kExpected, 1), Local(kExpected, 2));
  Restart();
  EXPECT_EQ(client_->Get("s", {Ask("p")}).pages[0].data, Local(kExpected, 1));
  PageIn later = page_;
  later.key = "later";
  ASSERT_EQ(client_->Put("s", {later}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("s", {Ask("later")}).pages[0].data, Local(kExpected, 1));
  EXPECT_TRUE(Open("s", kExpected, "").ok()) << "its own";
  EXPECT_TRUE(Open("s", "", IdOf(Blob(1))).ok());
}

TEST_F(QueriesTest, EveryPolicyOfQueriesWorksAndAColdFormReadsThemToo) {
  const std::string blob = Blob(3), id = IdOf(blob);
  ASSERT_TRUE(Send(blob).ok());
  for (const std::string policy : {"qfilters", "triattention"}) {
    const std::string recipe = policy + "(keep=0.8)|int8";
    ASSERT_TRUE(Open(policy, recipe, "").ok()) << "the only one that fits";
    ASSERT_EQ(client_->Put(policy, {page_}).pages[0].status(), v1::STORED);
    EXPECT_EQ(client_->Get(policy, {Ask("p")}).pages[0].data, Local(recipe, 3));
  }
  ASSERT_TRUE(Open("cold", std::string("hot=raw,cold=") + kExpected, id).ok());
  ASSERT_EQ(client_->Put("cold", {page_}).pages[0].status(), v1::STORED);
  EXPECT_EQ(client_->Get("cold", {Ask("p")}).pages[0].data.substr(0, page_.raw.size()), page_.raw);
  v1::EvictRequest evict;
  evict.set_tier("host");
  v1::EvictResponse evicted;
  ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), evict, &evicted).ok());
  EXPECT_EQ(client_->Get("cold", {Ask("p")}).pages[0].data, Local(kExpected, 3));
}

TEST_F(QueriesTest, SpacesNameWhatIsMissingOrDiffers) {
  const grpc::Status none = Open("s", kExpected, "");
  EXPECT_EQ(none.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(none.error_message(), AllOf(HasSubstr("'queries'"), HasSubstr("kvstow codec send")));
  EXPECT_EQ(Open("s", kExpected, IdOf(Blob(1))).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  const grpc::Status cut = Open("s", kExpected, "short");
  EXPECT_EQ(cut.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(cut.error_message(), HasSubstr("queries: 5 bytes"));
  ASSERT_TRUE(Send(Blob(1)).ok());
  ASSERT_TRUE(Send(Blob(2)).ok());
  const grpc::Status several = Open("s", kExpected, "");
  EXPECT_EQ(several.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(several.error_message(), HasSubstr("both fit"));
  EXPECT_EQ(Open("s", "knorm(keep=0.5)|int8", IdOf(Blob(1))).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT)
      << "it reads none";
  ASSERT_TRUE(Open("s", kExpected, IdOf(Blob(1))).ok());
  const grpc::Status other = Open("s", kExpected, IdOf(Blob(2)));
  EXPECT_EQ(other.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(other.error_message(),
              AllOf(HasSubstr(HexOf(AsBytes(IdOf(Blob(1))))), HasSubstr("with queries")));
}

TEST_F(QueriesTest, WithoutTheirFileASpaceTakesNoPagesButHasThoseThatItHad) {
  ASSERT_TRUE(Send(Blob(1)).ok());
  ASSERT_TRUE(Open("s", kExpected, "").ok());
  ASSERT_EQ(client_->Put("s", {page_}).pages[0].status(), v1::STORED);
  StopServer();
  const auto folder = std::filesystem::path(DiskPath()) / "calibrations";
  ASSERT_TRUE(std::filesystem::exists(folder / (HexOf(AsBytes(IdOf(Blob(1)))) + ".kvcal")));
  std::filesystem::remove_all(folder);
  StartServer();
  EXPECT_EQ(client_->Get("s", {Ask("p")}).pages[0].data, Local(kExpected, 1));
  PageIn other = page_;
  other.key = "q";
  EXPECT_EQ(client_->Put("s", {other}).pages[0].status(), v1::REFUSED);
  ASSERT_TRUE(Send(Blob(1)).ok());
  ASSERT_TRUE(Open("s", "", "").ok());
  EXPECT_EQ(client_->Put("s", {other}).pages[0].status(), v1::STORED);
}

TEST_F(QueriesTest, WhatIsNoCalibrationIsRefused) {
  // The place of a stream that ended may be taken for a moment yet.
  const auto code_of = [&](const std::string& blob) {
    grpc::StatusCode code = grpc::StatusCode::OK;
    EXPECT_TRUE(Eventually([&] {
      code = Send(blob).error_code();
      return code != grpc::StatusCode::RESOURCE_EXHAUSTED;
    }));
    return code;
  };
  EXPECT_EQ(code_of(""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of("no calibration"), grpc::StatusCode::INVALID_ARGUMENT);
  std::string cut = Blob(1);
  cut.pop_back();
  EXPECT_EQ(code_of(cut), grpc::StatusCode::INVALID_ARGUMENT);
  std::string unknown = Blob(1);
  unknown[8] = 9;  // the version
  EXPECT_EQ(code_of(unknown), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(DiskPath()) / "calibrations"));
  grpc::ClientContext no_deadline;
  v1::SendCalibrationResponse response;
  auto writer = client_->kv().SendCalibration(&no_deadline, &response);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(QueriesTest, OneTooManyAtATimeIsToldWhenToComeBack) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<v1::SendCalibrationResponse> responses(Calibrations::kMaxSending);
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::SendCalibrationRequest>>> open;
  v1::SendCalibrationRequest request;
  request.set_data("K");
  for (auto& response : responses) {
    contexts.push_back(client_->Context());
    open.push_back(client_->kv().SendCalibration(contexts.back().get(), &response));
    open.back()->WaitForInitialMetadata();
    ASSERT_TRUE(open.back()->Write(request));
  }
  v1::SendCalibrationResponse response;
  const auto context = client_->Context();
  const auto refused = client_->kv().SendCalibration(context.get(), &response);
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(context->GetServerTrailingMetadata().contains(kPushbackKey));
  for (auto& writer : open) {
    writer->WritesDone();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(Eventually([&] { return Send(Blob(1)).ok(); }));
}

TEST_F(QueriesTest, OneThatIsSilentGivesWayToTheNext) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<v1::SendStatisticsResponse> responses(Calibrations::kMaxSending);
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::SendStatisticsRequest>>> silent;
  for (auto& response : responses) {
    contexts.push_back(client_->Context(600));
    silent.push_back(client_->kv().SendStatistics(contexts.back().get(), &response));
    silent.back()->WaitForInitialMetadata();
  }
  EXPECT_EQ(Send(Blob(1)).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  clock_.Advance(std::chrono::seconds(1));
  const grpc::Status sent = Send(Blob(1));
  EXPECT_TRUE(sent.ok()) << sent.error_message();
  EXPECT_EQ(silent[0]->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(contexts[0]->GetServerTrailingMetadata().contains(kPushbackKey));
  EXPECT_EQ(Metric("kvstow_ended_streams_total{reason=\"crowded\"}"), 1);
  silent[1]->WritesDone();
  EXPECT_EQ(silent[1]->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "it was left";
}

TEST(CalibrationsTest, AFolderThatCannotBeWrittenRefusesWhatIsSent) {
  const auto file = std::filesystem::temp_directory_path() / "kvstow_no_folder";
  std::ofstream(file) << "a file";
  Calibrations calibrations("", file.string());
  const auto added = calibrations.Add(AsBytes(Blob(1)));
  EXPECT_TRUE(absl::IsUnavailable(added.status())) << added.status();
  EXPECT_THAT(std::string(added.status().message()), HasSubstr("cannot be written"));
  EXPECT_EQ(calibrations.store().Find(CalibrationId{}), nullptr);
  Calibrations in_memory("");
  ASSERT_TRUE(in_memory.Add(AsBytes(Blob(1))).ok());
  EXPECT_TRUE(in_memory.Add(AsBytes(Blob(1)))->already_there);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace kvstow::testing
