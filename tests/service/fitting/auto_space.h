// A server with spaces of recipe `auto`, and what it fits them to.
#ifndef KVSTOW_TESTS_SERVICE_FITTING_AUTO_SPACE_H_
#define KVSTOW_TESTS_SERVICE_FITTING_AUTO_SPACE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/calibration/model_stats.h"
#include "proto/wire/spec.h"
#include "storage/store/tiered_store.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {

inline constexpr uint32_t kTokens = 128;
inline constexpr double kTarget = 0.01;

inline KvSpec Spec() {
  KvSpec spec = CorrelatedSpec();
  spec.revision = "1";
  return spec;
}

// The model feels K of head 0 a hundred times more than a codec would guess, and little else.
inline ModelStats OnlyHeadZero() {
  const KvSpec spec = Spec();
  ModelStats stats;
  const auto fill = [&](uint32_t dim, float most, std::vector<float>& metric,
                        std::vector<float>& gain) {
    for (uint32_t i = 0; i < spec.layers * spec.kv_heads; ++i) {
      gain.push_back(i % spec.kv_heads == 0 ? most : 1e-4f);
      for (uint32_t at = 0; at < dim * dim; ++at) metric.push_back(at % (dim + 1) == 0 ? 1 : 0);
    }
  };
  fill(spec.head_dim_k, 2, stats.metric_k, stats.gain_k);
  fill(spec.head_dim_v, 1e-4f, stats.metric_v, stats.gain_v);
  return stats;
}

// A server with an `auto` space that looks for pages all the time.
class AutoSpaceTest : public ServerTest {
 protected:
  void SetUp() override {
    config_.disk_path = DiskPath();
    config_.disk_bytes = 256 << 20;
    config_.host_bytes = 64 << 20;
    config_.recipe = "auto";
    options_.fit_look_every = std::chrono::milliseconds(1);
    options_.fit_least_rest = Duration(0);
    StartServer();
  }
  grpc::Status TryOpen(const std::string& name, const std::string& recipe,
                       v1::OpenSpaceResponse& out) {
    v1::OpenSpaceRequest request;
    request.set_space(name);
    request.set_recipe(recipe);
    ToProto(Spec(), *request.mutable_spec());
    return client_->kv().OpenSpace(client_->Context().get(), request, &out);
  }
  v1::OpenSpaceResponse Open(const std::string& name, const std::string& recipe = "") {
    v1::OpenSpaceResponse out;
    const grpc::Status status = TryOpen(name, recipe, out);
    EXPECT_TRUE(status.ok()) << status.error_message();
    Fingerprints::All().Note(name, out.fingerprint());
    return out;
  }
  // In pieces of 1,000 bytes.
  grpc::Status SendStatistics(const std::string& space, const std::string& blob,
                              v1::SendStatisticsResponse* out = nullptr) {
    v1::SendStatisticsResponse response;
    const auto context = client_->Context();
    auto writer = client_->kv().SendStatistics(context.get(), out != nullptr ? out : &response);
    v1::SendStatisticsRequest request;
    request.set_space(space);
    request.set_fingerprint(Fingerprints::All().Of(space));
    for (size_t at = 0; at == 0 || at < blob.size(); at += 1000) {
      request.set_data(blob.substr(at, 1000));
      if (!writer->Write(request)) break;
      request.Clear();
    }
    writer->WritesDone();
    return writer->Finish();
  }
  static PageIn Page(uint64_t i) {
    const auto raw = CorrelatedPage(Spec(), kTokens, i, i % 2 * kTokens);
    PageIn page{.key = absl::StrCat("p", i), .raw = std::string(AsString(raw)), .tokens = kTokens};
    page.first_position = i % 2 * kTokens;
    return page;
  }
  void Put(const std::string& space, uint64_t from, uint64_t to) {
    std::vector<PageIn> pages;
    for (uint64_t i = from; i < to; ++i) pages.push_back(Page(i));
    const auto put = client_->Put(space, pages);
    ASSERT_TRUE(put.status.ok()) << put.status.error_message();
    for (const auto& page : put.pages) EXPECT_EQ(page.status(), v1::STORED) << page.message();
  }
  v1::FittedForm Fitted(const std::string& space) {
    v1::UsageRequest request;
    request.set_space(space);
    v1::UsageResponse out;
    EXPECT_TRUE(client_->kv().Usage(client_->Context().get(), request, &out).ok());
    return out.fitted();
  }
  void MakeCold() {
    const absl::Status s = server_->store().cooling().Shrink(TierId::kHost, 1 << 10);
    (void)s;  // leased pages may stay
  }
  std::string RecipeOf(const std::string& space, const std::string& key) {
    const auto got = client_->Get(space, {Ask(key)});
    if (got.pages.size() != 1 || got.pages[0].reply.status() != v1::HIT) return "a miss";
    return got.pages[0].reply.recipe();
  }
  std::filesystem::path FittedFolder() const { return DiskPath() + "/calibrations/fitted"; }
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_FITTING_AUTO_SPACE_H_
