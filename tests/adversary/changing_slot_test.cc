// A worker that changes a page in shared memory while it is put: what is stored is what its digest
// says.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/digest.h"
#include "kernels/codec/decode_page.h"
#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"
#include "tests/service/bare_server.h"

namespace kvstow::testing {
namespace {

class ChangingSlotTest : public ::testing::TestWithParam<const char*> {
 protected:
  ChangingSlotTest()
      : space_(parts_.spaces
                   .Open(Caller{}, {.name = GetParam(),
                                    .spec = BareServer::Spec(),
                                    .recipe = GetParam(),
                                    .fidelity = {}})
                   .value()
                   .space) {}

  BareServer server_;
  LocalParts parts_ = server_.Local();
  const std::shared_ptr<const Space> space_;
};

TEST_P(ChangingSlotTest, AnExactPageIsWhatItsDigestSays) {
  std::vector<uint8_t> slot(PageBytes(space_->spec, 4), 7);
  // Infinity: a lossy recipe keeps the page exactly.
  slot[0] = 0x00;
  slot[1] = 0x7c;
  v1::PutPage page;
  page.set_key("k");
  page.set_tokens(4);
  page.set_payload_bytes(slot.size());
  const PageCoder change_then_code = [&](const PageToEncode& to_encode) {
    std::ranges::fill(std::span(slot).subspan(2), uint8_t{9});  // after its digest was made
    return space_->codec->Encode(to_encode);
  };
  IncomingPage incoming(parts_.puts, *space_, "", v1::RAW, page, "");
  ASSERT_FALSE(incoming.Begin().has_value());
  const v1::PutResult put = incoming.Store(SharedBytes(nullptr, slot), change_then_code);
  ASSERT_EQ(put.status(), v1::STORED) << put.message();
  v1::GetPage get;
  get.set_key("k");
  std::vector<uint8_t> out(slot.size());
  HostSink sink(out);
  const FetchedPage got = parts_.reader.FetchTo(*space_, {}, get, sink);
  ASSERT_EQ(got.reply.status(), v1::HIT) << got.reply.message();
  EXPECT_TRUE(got.reply.exact());
  const Digest128 digest = Xxh3_128(out);
  EXPECT_TRUE(std::ranges::equal(AsBytes(got.reply.raw_digest()), digest.bytes));
}

INSTANTIATE_TEST_SUITE_P(Recipes, ChangingSlotTest, ::testing::Values("raw", "lossless", "int8"));

}  // namespace
}  // namespace kvstow::testing
