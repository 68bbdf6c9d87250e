// Summaries of keys: a Get of them bounds every logit of the page that a Get of it brings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "kernels/importance/key_summary.h"
#include "kernels/methods/kept_tokens.h"
#include "kernels/page/convert.h"
#include "proto/wire/spec.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 64;
constexpr char kSparse[] =
    "key_diversity|protect(first=2,last=4)|budget(keep=0.25)|affine(bits=8,group=64)";

class SummariesTest : public ServerTest {
 protected:
  void SetUp() override {
    page_ = {.key = "p", .raw = RandomPage(SmallSpec(), kTokens, 1), .tokens = kTokens};
    StartServer();
  }
  void Put(const std::string& space, const std::string& recipe, v1::Fidelity fidelity) {
    ASSERT_TRUE(client_->OpenSpace(space, recipe, nullptr, fidelity).ok());
    ASSERT_EQ(client_->Put(space, {page_}).pages[0].status(), v1::STORED);
  }
  PageOut Get(const std::string& space, const v1::GetPage& request, v1::Payload payload) {
    const auto got = client_->Get(space, {request}, 0, payload);
    EXPECT_TRUE(got.status.ok()) << got.status.error_message();
    return got.pages.size() == 1 ? got.pages[0] : PageOut{};
  }
  // Checks the summary that a request brings against the page that it brings.
  void ExpectBounds(const std::string& space, const v1::GetPage& request, uint32_t layers) {
    KvSpec spec = SmallSpec();
    const PageOut page = Get(space, request, v1::RAW), spans = Get(space, request, v1::SUMMARY);
    ASSERT_EQ(page.reply.status(), v1::HIT) << page.reply.message();
    ASSERT_EQ(spans.reply.status(), v1::HIT) << spans.reply.message();
    EXPECT_EQ(spans.reply.tokens(), page.reply.tokens());
    EXPECT_EQ(spans.reply.levels(), page.reply.levels());
    EXPECT_EQ(spans.reply.kept_share(), page.reply.kept_share());
    EXPECT_EQ(spans.reply.payload_bytes(), SummaryBytes(spec, layers));
    const auto summary = ReadSummary(spec, layers, AsBytes(spans.data));
    ASSERT_TRUE(summary.ok()) << summary.status();
    const uint32_t tokens = page.reply.tokens(), heads = spec.kv_heads, dim = spec.head_dim_k;
    Selection kept{layers, tokens, heads, std::vector<uint8_t>(layers * tokens * heads, 1)};
    if (const size_t bytes = page.reply.kept().bytes(); bytes > 0) {
      kept = ReadKept(AsBytes(page.data).last(bytes), layers, tokens, heads).value();
    }
    std::vector<float> query(dim), k(SlabValues(spec, Part::kK, tokens));
    for (uint32_t c = 0; c < dim; ++c) query[c] = std::sin(static_cast<float>(3 * c + 1));
    spec.layers = layers;
    for (uint32_t l = 0; l < layers; ++l) {
      const auto* slab = reinterpret_cast<const uint8_t*>(page.data.data()) +
                         SlabOffset(spec, l, Part::kK, tokens);
      ASSERT_TRUE(LoadFloats(spec.dtype, slab, k.size(), k.data()));
      for (uint32_t h = 0; h < heads; ++h) {
        const double bound = LargestLogit(*summary, l, h, query);
        double largest = -INFINITY, most = -INFINITY;
        for (uint32_t t = 0; t < tokens; ++t) {
          if (!kept.Kept(l, t, h)) continue;
          double logit = 0;
          const float* key = k.data() + (size_t{t} * heads + h) * dim;
          for (uint32_t c = 0; c < dim; ++c) logit += double{query[c]} * key[c];
          largest = std::max(largest, logit);
          most = std::max(most, double{key[0]});
        }
        EXPECT_GE(bound, largest - 1e-9) << "layer " << l << ", head " << h;
        EXPECT_EQ(summary->largest[(size_t{l} * heads + h) * dim], most) << "no looser than it is";
      }
    }
  }

  PageIn page_;
};

TEST_F(SummariesTest, TheyBoundThePageAsItComes) {
  Put("exact", "raw", v1::EXACT);
  Put("int4", "kivi4", v1::DENSE);
  Put("levels", "rotated8", v1::DENSE);
  Put("sparse", kSparse, v1::SPARSE);
  for (const char* space : {"exact", "int4", "levels", "sparse"}) {
    ExpectBounds(space, Ask("p"), SmallSpec().layers);
  }
  v1::GetPage coarse = Ask("p");
  coarse.set_max_levels(1);
  ExpectBounds("levels", coarse, SmallSpec().layers);
  EXPECT_NE(Get("levels", coarse, v1::SUMMARY).data, Get("levels", Ask("p"), v1::SUMMARY).data)
      << "of what would come, not of what was put";
}

TEST_F(SummariesTest, LayersAndTokensAreThatPartOfThePage) {
  Put("sparse", kSparse, v1::SPARSE);
  v1::GetPage part = Ask("p");
  part.set_first_layer(1);
  part.set_layer_count(2);
  part.set_first_token(8);
  part.set_token_count(16);
  ExpectBounds("sparse", part, 2);
  part.set_token_count(kTokens);
  EXPECT_EQ(Get("sparse", part, v1::SUMMARY).reply.status(), v1::NOT_COMPATIBLE);
  EXPECT_EQ(Get("sparse", Ask("other"), v1::SUMMARY).reply.status(), v1::MISS);
}

TEST_F(SummariesTest, APageWithNanHasNoneAndNobodyPutsThem) {
  const uint16_t nan = 0x7e00;
  std::memcpy(page_.raw.data(), &nan, sizeof(nan));
  Put("exact", "raw", v1::EXACT);
  const PageOut none = Get("exact", Ask("p"), v1::SUMMARY);
  EXPECT_EQ(none.reply.status(), v1::NOT_COMPATIBLE);
  EXPECT_THAT(none.reply.message(), HasSubstr("NaN"));
  EXPECT_EQ(Get("exact", Ask("p"), v1::RAW).reply.status(), v1::HIT);
  const auto put = client_->Put("exact", {page_}, 64 << 10, v1::SUMMARY);
  EXPECT_EQ(put.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(put.status.error_message(), HasSubstr("a summary is no page"));
}

}  // namespace
}  // namespace kvstow::testing
