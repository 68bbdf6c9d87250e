// What page_sink.h promises, of every sink: the host's memory and a range of a GPU's.
#include "service/pages/page_sink.h"

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "service/transports/local_gpu.h"
#include "tests/service/bare_server.h"

namespace kvstow {
namespace {

using testing::BareServer;

enum class Place : uint8_t { kHost, kGpu };
void PrintTo(Place place, std::ostream* out) { *out << (place == Place::kHost ? "host" : "gpu"); }

class PageSinkTest : public ::testing::TestWithParam<Place> {
 protected:
  PageSinkTest() {
    for (size_t i = 0; i < raw_.size(); ++i) raw_[i] = i % 2 == 0 ? uint8_t(i) : uint8_t(0x38);
    if (GetParam() == Place::kHost) {
      sink_ = std::make_unique<HostSink>(host_);
      return;
    }
    memory_ = server_.gpu().Share(4096, server_.gpu().sharing().uuid()).value();
    auto page = GpuPage::At(server_.gpu(), *space_, memory_, 0, host_.size());
    EXPECT_TRUE(page.ok()) << page.status();
    sink_ = std::make_unique<GpuPage>(*std::move(page));
  }
  // The bytes that the sink has.
  std::vector<uint8_t> Bytes() const {
    if (GetParam() == Place::kHost) return host_;
    std::vector<uint8_t> out(host_.size());
    EXPECT_TRUE(
        server_.gpu().sharing().ToHost(memory_->bytes().first(out.size()), out.data()).ok());
    return out;
  }

  mutable BareServer server_;
  const std::shared_ptr<const Space> space_ = server_.Local().spaces.Find(Caller{}, "s").value();
  std::vector<uint8_t> raw_ = std::vector<uint8_t>(PageBytes(BareServer::Spec(), 4));
  std::vector<uint8_t> host_ = std::vector<uint8_t>(raw_.size());
  std::shared_ptr<SharedDeviceMemory> memory_;
  std::unique_ptr<PageSink> sink_;
};

TEST_P(PageSinkTest, CopiesPartsOneAfterTheOther) {
  ASSERT_EQ(sink_->room(), raw_.size());
  const std::vector<SharedBytes> parts = {SharedBytes(nullptr, std::span(raw_).first(100)),
                                          SharedBytes(nullptr, std::span(raw_).subspan(100))};
  ASSERT_TRUE(sink_->Copy(parts).ok());
  EXPECT_EQ(Bytes(), raw_);
}

TEST_P(PageSinkTest, DecodesAsTheHostDoes) {
  const auto page = space_->codec->Encode(
      {.raw = raw_, .tokens = 4, .first_position = 0, .key = "k", .raw_digest = Xxh3_128(raw_)});
  ASSERT_TRUE(page.ok()) << page.status();
  const std::vector<std::optional<SharedBytes>> bodies(page->segments.begin(),
                                                       page->segments.end());
  const PageRange all{{0, page->header.layers}, {0, 4}};
  std::vector<uint8_t> due(raw_.size());
  ASSERT_TRUE(DecodePage(page->header, bodies, all, due, NoCalibrations()).ok());
  const absl::Status decoded = sink_->Decode(page->header, bodies, all, NoCalibrations());
  if (absl::IsUnimplemented(decoded)) {  // then the reader decodes for Copy
    EXPECT_EQ(GetParam(), Place::kGpu);
    return;
  }
  ASSERT_TRUE(decoded.ok()) << decoded;
  EXPECT_EQ(Bytes(), due);
}

TEST_P(PageSinkTest, SaysWhereTheHostCanReadIt) {
  EXPECT_EQ(sink_->on_host().size(), GetParam() == Place::kHost ? raw_.size() : 0u);
}

INSTANTIATE_TEST_SUITE_P(Places, PageSinkTest, ::testing::Values(Place::kHost, Place::kGpu),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace kvstow
