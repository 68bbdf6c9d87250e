// The cold form of a page, of a hot form that is whole or has lost levels: it never claims to be
// better than it is.
#include "service/pages/page_cooler.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/recipe/recipe.h"
#include "tests/kernels/pages.h"
#include "tests/service/wire_client.h"

namespace kvstow::testing {
namespace {

constexpr uint32_t kTokens = 64;

// The error that a page's own segments claim to leave.
double ClaimedError(const PageHeader& header) {
  const double all = 2.0 * header.layers * header.tokens;
  double left = all;
  for (const SegmentInfo& s : header.segments) left -= s.gain;
  return left / all;
}

class PageCoolerTest : public ::testing::Test {
 protected:
  // What `raw` cools to when its hot form has only some levels left.
  PageHeader Cool(const std::string& recipe, const std::string& raw, uint32_t levels,
                  std::vector<uint8_t>& decoded) {
    const auto opened = spaces_.Open(
        Caller{},
        {.name = recipe == kTwo ? "two" : "three", .spec = SmallSpec(), .recipe = recipe});
    EXPECT_TRUE(opened.ok()) << opened.status();
    const Space& space = *opened->space;
    const EncodedPage hot =
        *space.codec->Encode({.raw = AsBytes(raw), .tokens = kTokens, .key = "k"});
    const size_t present = SegmentsForLevels(hot.header, levels);
    const auto cold = cooler_.Cool({.space = space.id, .key = "k"}, hot.header_bytes,
                                   std::span(hot.segments).first(present));
    EXPECT_TRUE(cold.has_value());
    const PageHeader header = *ParsePageHeader(cold->header.span());
    decoded.resize(raw.size());
    EXPECT_TRUE(DecodePage(header, cold->bodies, decoded).ok());
    return header;
  }

  static constexpr char kTwo[] = "hot=rotated8,cold=kvstow";
  static constexpr char kThree[] = "hot=rotated8,cold=turboquant3";
  SpaceId last_id_ = 0;
  Calibrations calibrations_{""};
  Spaces spaces_{{},
                 calibrations_,
                 [this] { return ++last_id_; },
                 [](const SpaceRecord&) { return absl::OkStatus(); }};
  AttentionPool attention_{1 << 20};
  Metrics metrics_{"test"};
  const PageCooler cooler_{spaces_, calibrations_.store(), attention_, metrics_};
};

TEST_F(PageCoolerTest, TheErrorOfBothFormsIsClaimed) {
  for (const std::string recipe : {kTwo, kThree}) {
    double last = 1;
    for (const uint32_t levels : {1, 2, 3}) {
      SCOPED_TRACE(recipe + ", levels of the hot form: " + std::to_string(levels));
      const std::string raw = RandomPage(SmallSpec(), kTokens, levels);
      std::vector<uint8_t> decoded;
      const double claimed = ClaimedError(Cool(recipe, raw, levels, decoded));
      const double truth = RelativeError(SmallSpec().dtype, AsBytes(raw), decoded);
      EXPECT_GE(claimed, 0.95 * truth);
      EXPECT_LE(claimed, 1.5 * truth) << "nor much worse than it is";
      EXPECT_LT(claimed, last);
      last = claimed;
    }
  }
}

}  // namespace
}  // namespace kvstow::testing
