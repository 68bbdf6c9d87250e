// What device_coder.h promises, on a GPU that the host plays: pages within the bound of the CPU's,
// and everything that it cannot do left to the CPU.
#include "service/pages/device_coder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <list>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/device/host_sharing.h"
#include "service/pages/page_reader.h"
#include "service/transports/local_gpu.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"
#include "storage/tiers/noop_tier.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/random_query_means.h"
#include "tests/kernels/vocabulary_pages.h"
#include "tests/service/unsteady_gpu.h"

namespace kvstow::testing {
namespace {

using Pages = std::vector<DeviceCoder::PageOfCodec>;
using Optionals = std::vector<std::optional<SharedBytes>>;

constexpr uint32_t kTokens = 128;

class DeviceCoderTest : public ::testing::Test {
 protected:
  DeviceCoderTest() {
    EXPECT_TRUE(SetUpLog("error", "text").ok());
    options_.clock = &clock_;
    options_.least_page_bytes = 0;
    for (const uint32_t run : {1, 3}) {
      const auto blob = FitCorrelated(spec_, run);
      EXPECT_TRUE(blob.ok()) << blob.status();
      ids_.push_back((*calibrations_.Add(AsBytes(*blob)))->id());
    }
  }
  // The codec of a recipe, which names its calibration as that of a space does.
  std::shared_ptr<const Codec> CodecOf(const std::string& text) {
    Recipe recipe = *ParseRecipe(text);
    if (const auto needs = *CalibrationNeeds(recipe); needs.has_value()) {
      recipe = *NameCalibration(recipe, HexOf((*calibrations_.Choose(spec_, *needs))->id()));
    }
    return *MakeCodec(recipe, spec_, calibrations_);
  }
  DeviceCoder::PageOfCodec Page(const Codec& codec, uint64_t seed, uint64_t first = kTokens,
                                uint32_t tokens = kTokens) {
    std::vector<uint8_t>& raw = raws_.emplace_back(CorrelatedPage(spec_, tokens, seed, first));
    return {&codec,
            {.raw = raw,
             .tokens = tokens,
             .first_position = first,
             .key = "k",
             .raw_digest = Xxh3_128(raw)}};
  }
  std::vector<uint8_t> DecodeOnTheCpu(const EncodedPage& page) {
    std::vector<uint8_t> out(PageBytes(page.header.Geometry(), page.header.tokens));
    const absl::Status status = DecodePage(page.header, page.segments, out, calibrations_);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  // What the CPU's codec makes, and what it says of the GPU's.
  void ExpectAsTheCpus(const DeviceCoder::PageOfCodec& page,
                       const std::optional<EncodedPage>& coded) {
    ASSERT_TRUE(coded.has_value());
    const EncodedPage cpu = *page.codec->Encode(page.page);
    EXPECT_EQ(AsString(coded->header_bytes.span()), SerializePageHeader(coded->header));
    EXPECT_TRUE(VerifySegments(coded->header, coded->segments).ok());
    PageHeader header = coded->header;
    ASSERT_EQ(header.segments.size(), cpu.header.segments.size());
    header.segments = cpu.header.segments;
    EXPECT_EQ(header, cpu.header) << "all but the segments";
    const double lost = RelativeError(spec_.dtype, page.page.raw, DecodeOnTheCpu(cpu));
    EXPECT_LT(RelativeError(spec_.dtype, page.page.raw, DecodeOnTheCpu(*coded)),
              1.02 * lost + kJointDeviceError);
  }
  static Optionals Bodies(const EncodedPage& page) {
    return {page.segments.begin(), page.segments.end()};
  }
  bool Decodes(DeviceCoder& coder, const EncodedPage& page, const Optionals& bodies,
               std::vector<uint8_t>* out = nullptr, PageRange wanted = {}) {
    std::vector<uint8_t> own(PageBytes(page.header.Geometry(), page.header.tokens));
    std::vector<uint8_t>& to = out == nullptr ? own : *out;
    to.resize(own.size());
    return coder.Decode(spec_, page.header, bodies, wanted, to);
  }

  const KvSpec spec_ = CorrelatedSpec(3, 16, 16);  // whose int8 the GPU has too
  ManualClock clock_;
  CalibrationStore calibrations_;
  std::vector<CalibrationId> ids_;
  UnsteadyGpu gpu_;
  DeviceCoder::Options options_;
  std::list<std::vector<uint8_t>> raws_;
};

TEST_F(DeviceCoderTest, PagesOfSeveralCodecsAreEncodedAsTheCpuDoes) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto one = CodecOf("kvstow-cal(run=1,step=0.5)"), two = CodecOf("kvstow-cal(run=3)");
  const auto again = CodecOf("kvstow-cal(run=1,step=0.5)"), other = CodecOf("int8");
  EXPECT_TRUE(DeviceCoder::TakesTogether(*one, *again));
  EXPECT_FALSE(DeviceCoder::TakesTogether(*one, *two));
  Pages pages;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (const auto& codec : {one, two, again}) {
      pages.push_back(Page(*codec, seed, (seed + 1) * kTokens, seed == 3 ? 70 : kTokens));
    }
  }
  pages.push_back(Page(*other, 9));
  const auto coded = coder.Encode(pages);
  ASSERT_EQ(coded.size(), pages.size());
  for (size_t i = 0; i + 1 < pages.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectAsTheCpus(pages[i], coded[i]);
  }
  EXPECT_FALSE(coded.back().has_value()) << "int8 is the CPU's";
  EXPECT_GT(coder.codec_bytes(), 0u);
}

// Hot pages go to the GPU as they are, and become raw there.
TEST_F(DeviceCoderTest, PagesOfAnotherCodingNeedNoRawBytes) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto hot = CodecOf("int8"), cold = CodecOf("kvstow-cal(run=3,step=0.5)");
  std::vector<EncodedPage> coded;
  Pages pages, raws;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    coded.push_back(*hot->Encode(Page(*hot, seed, seed * kTokens, kTokens - seed).page));
  }
  for (const EncodedPage& page : coded) {
    EXPECT_TRUE(coder.Recodes(*cold, page.header));
    raws_.push_back(DecodeOnTheCpu(page));
    raws.push_back({cold.get(),
                    {.raw = raws_.back(),
                     .tokens = page.header.tokens,
                     .first_position = page.header.first_position,
                     .key = "k",
                     .raw_digest = page.header.raw_digest}});
    pages.push_back(raws.back());
    pages.back().page.raw = {};
    pages.back().header = &page.header;
    pages.back().bodies = page.segments;
  }
  pages[3].bodies = pages[3].bodies.first(0);
  const auto out = coder.Encode(pages);
  for (size_t i = 0; i < 3; ++i) ExpectAsTheCpus(raws[i], out[i]);
  EXPECT_FALSE(out[3].has_value()) << "nothing is there of it";

  PageHeader header = coded[0].header;
  header.exact = true;
  EXPECT_FALSE(coder.Recodes(*cold, header));
  header = coded[0].header;
  header.pipeline = "planes(step=1)";
  EXPECT_FALSE(coder.Recodes(*cold, header)) << "the device has no such codec";
  EXPECT_FALSE(coder.Recodes(*hot, coded[0].header));
  EXPECT_FALSE(DeviceCoder::None().Recodes(*cold, coded[0].header));
}

TEST_F(DeviceCoderTest, CallsAreSplitByTheBytesOfTheirPages) {
  const auto codec = CodecOf("kvstow-cal(run=3)");
  Pages pages;
  for (uint64_t seed = 0; seed < 5; ++seed) pages.push_back(Page(*codec, seed));
  int loads[2];
  for (const bool split : {false, true}) {
    if (split) options_.most_batch_bytes = 2 * pages[0].page.raw.size();
    DeviceCoder coder(&gpu_, calibrations_, options_);
    gpu_.loads = 0;
    const auto coded = coder.Encode(pages);
    for (size_t i = 0; i < pages.size(); ++i) ExpectAsTheCpus(pages[i], coded[i]);
    loads[split] = gpu_.loads;
  }
  EXPECT_EQ(loads[1], 3 * loads[0]) << "two, two and one";
}

TEST_F(DeviceCoderTest, WholePagesAreDecodedWithinTheBound) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  for (const uint32_t tokens : {kTokens, 70u, 3u}) {
    const auto codec = CodecOf("kvstow-cal(run=1,step=0.5,levels=3)");
    const auto raw = Page(*codec, tokens, 0, tokens);
    const EncodedPage page = *codec->Encode(raw.page);
    for (const uint32_t levels : {1, 2, 3}) {
      Optionals bodies = Bodies(page);
      bodies.resize(SegmentsForLevels(page.header, levels));
      std::vector<uint8_t> due(raw.page.raw.size()), out;
      ASSERT_TRUE(DecodePage(page.header, bodies, PageRange{}, due, calibrations_).ok());
      ASSERT_TRUE(Decodes(coder, page, bodies, &out)) << tokens << ", levels " << levels;
      EXPECT_LT(RelativeError(spec_.dtype, due, out), kJointDeviceError);
      const PageRange all{{0, spec_.layers}, {0, tokens}};
      EXPECT_TRUE(Decodes(coder, page, bodies, nullptr, all));
    }
  }
}

// First tokens are no part of the transform.
TEST_F(DeviceCoderTest, FirstTokensAreTheCpus) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3,first=4)");
  const auto raw = Page(*codec, 5, 0);
  const auto coded = coder.Encode({&raw, 1})[0];
  ASSERT_TRUE(coded.has_value());
  const auto cpu = DecodeOnTheCpu(*codec->Encode(raw.page));
  std::vector<uint8_t> out;
  ASSERT_TRUE(Decodes(coder, *coded, Bodies(*coded), &out));
  std::vector<uint8_t> a(spec_.layers * LayerBytes(spec_, 4)), b(a.size());
  CopyTokens(spec_, spec_.layers, kTokens, cpu, {0, 4}, a);
  CopyTokens(spec_, spec_.layers, kTokens, out, {0, 4}, b);
  EXPECT_EQ(a, b);
}

TEST_F(DeviceCoderTest, ItLeavesPartsAndDamagedPagesToTheCpu) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=1,step=0.5)");
  const auto raw = Page(*codec, 1);
  const EncodedPage page = *codec->Encode(raw.page);
  const Optionals good = Bodies(page);
  ASSERT_TRUE(Decodes(coder, page, good));

  std::vector<uint8_t> part(LayerBytes(spec_, kTokens));
  EXPECT_FALSE(coder.Decode(spec_, page.header, good, {{1, 1}, {}}, part)) << "a layer";
  part.resize(PageBytes(spec_, 8));
  EXPECT_FALSE(coder.Decode(spec_, page.header, good, {{}, {0, 8}}, part)) << "some tokens";
  Optionals bodies = good;
  bodies[1].reset();
  EXPECT_FALSE(Decodes(coder, page, bodies)) << "a body is missing";
  bodies = good;
  bodies.pop_back();
  EXPECT_FALSE(Decodes(coder, page, bodies)) << "a level is not whole";
  EXPECT_FALSE(Decodes(coder, page, {}));
  bodies = good;
  bodies[0] = bodies[0]->Slice(0, bodies[0]->size() - 1);
  EXPECT_FALSE(Decodes(coder, page, bodies)) << "a body is short";
  EncodedPage shortened = page;
  shortened.header.segments[0].bytes -= 1;
  EXPECT_FALSE(Decodes(coder, shortened, bodies)) << "and its header says so";
  bodies[0] = SharedBytes::Take(std::string(page.segments[0].size(), '\xff'));
  EXPECT_FALSE(Decodes(coder, page, bodies)) << "noise";
  std::vector<uint8_t> out(raw.page.raw.size());
  EXPECT_TRUE(absl::IsDataLoss(DecodePage(page.header, bodies, PageRange{}, out, calibrations_)))
      << "of the CPU";

  EncodedPage lies = page;
  lies.header.exact = true;
  EXPECT_FALSE(Decodes(coder, lies, good));
  lies = page;
  lies.header.pipeline = "int8";
  EXPECT_FALSE(Decodes(coder, lies, good));
  lies = page;
  lies.header.calibration = ids_[1];
  EXPECT_FALSE(Decodes(coder, lies, good)) << "its pipeline names another";
  lies = page;
  std::swap(lies.header.segments[0], lies.header.segments[1]);
  EXPECT_FALSE(Decodes(coder, lies, good));
  KvSpec other = spec_;
  other.layers += 1;
  EXPECT_FALSE(coder.Decode(other, page.header, good, {}, out)) << "of another space";
  EXPECT_TRUE(Decodes(coder, page, good)) << "none of this is a failure of the GPU";
}

TEST_F(DeviceCoderTest, PagesThatTheGpuRefusesAreTheCpus) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3)");
  Pages pages = {Page(*codec, 1), Page(*codec, 2), Page(*codec, 3)};
  raws_.back()[raws_.back().size() - 1] = 0x7e;  // NaN
  const auto coded = coder.Encode(pages);
  ExpectAsTheCpus(pages[0], coded[0]);
  ExpectAsTheCpus(pages[1], coded[1]);
  EXPECT_FALSE(coded[2].has_value());
}

TEST_F(DeviceCoderTest, PagesWhoseKeysHaveLargeMeansAreAsTheCpus) {
  const auto blob = FitCorrelated(spec_, 3, {}, false, 200);
  ASSERT_TRUE(blob.ok());
  const auto id = (*calibrations_.Add(AsBytes(*blob)))->id();
  const Recipe recipe = *NameCalibration(*ParseRecipe("kvstow-cal(run=3)"), HexOf(id));
  const auto codec = *MakeCodec(recipe, spec_, calibrations_);
  Pages pages;
  for (const uint64_t first : {uint64_t{0}, uint64_t{kTokens}}) {
    raws_.push_back(CorrelatedPage(spec_, kTokens, 1, first, 200));
    pages.push_back(Page(*codec, 1, first));
    pages.back().page.raw = *std::prev(raws_.end(), 2);
    pages.back().page.raw_digest = Xxh3_128(pages.back().page.raw);
  }
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto coded = coder.Encode(pages);
  for (size_t i = 0; i < pages.size(); ++i) ExpectAsTheCpus(pages[i], coded[i]);
  const EncodedPage first = *codec->Encode(pages[0].page);
  EXPECT_TRUE(Decodes(coder, first, Bodies(first)));
}

TEST_F(DeviceCoderTest, AfterAFailureTheCpuWorksForAWhile) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3)");
  const auto raw = Page(*codec, 1);
  const EncodedPage page = *codec->Encode(raw.page);
  for (const bool full : {true, false}) {
    for (const bool decode : {true, false}) {
      SCOPED_TRACE(::testing::Message() << (full ? "full" : "broken") << decode);
      const auto works = [&] {
        return decode ? Decodes(coder, page, Bodies(page)) : coder.Encode({&raw, 1})[0].has_value();
      };
      ASSERT_TRUE(works());
      (full ? gpu_.is_full : gpu_.is_broken) = true;
      EXPECT_FALSE(works());
      EXPECT_FALSE(coder.Takes(*codec));
      gpu_.is_full = gpu_.is_broken = false;
      const int buffers = gpu_.buffers;
      EXPECT_FALSE(works()) << "it rests";
      EXPECT_EQ(gpu_.buffers, buffers) << "nothing was asked of the GPU";
      clock_.Advance(options_.rest);
      EXPECT_TRUE(works());
    }
  }
}

// The CPU does not wait for its turn on the GPU.
TEST_F(DeviceCoderTest, PagesThatComeWhileOthersAreDecodedAreTheCpus) {
  options_.most_decodes = 1;
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3)");
  const auto raw = Page(*codec, 1);
  const EncodedPage page = *codec->Encode(raw.page);
  ASSERT_TRUE(Decodes(coder, page, Bodies(page)));
  std::promise<void> begun, end;
  std::atomic<bool> first = true;
  gpu_.on_load = [&] {
    if (!first.exchange(false)) return;
    begun.set_value();
    end.get_future().wait();
  };
  std::thread other([&] { EXPECT_TRUE(Decodes(coder, page, Bodies(page))); });
  begun.get_future().wait();
  const auto there = *gpu_.Allocate(raw.page.raw.size());
  const int buffers = gpu_.buffers;
  EXPECT_FALSE(Decodes(coder, page, Bodies(page)));
  EXPECT_FALSE(coder.DecodeThere(spec_, page.header, Bodies(page), {}, *there));
  EXPECT_EQ(gpu_.buffers, buffers) << "nothing was asked of the GPU";
  EXPECT_TRUE(coder.Takes(*codec)) << "nothing failed";
  end.set_value();
  other.join();
  EXPECT_TRUE(Decodes(coder, page, Bodies(page)));
  EXPECT_TRUE(coder.DecodeThere(spec_, page.header, Bodies(page), {}, *there));
}

TEST_F(DeviceCoderTest, ACodecThatFindsNoRoomIsMadeLater) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3)");
  gpu_.is_full = true;
  EXPECT_FALSE(coder.Takes(*codec));
  EXPECT_EQ(coder.codec_bytes(), 0u);
  gpu_.is_full = false;
  EXPECT_FALSE(coder.Takes(*codec));
  clock_.Advance(options_.rest);
  EXPECT_TRUE(coder.Takes(*codec));
}

TEST_F(DeviceCoderTest, ACodecGoesWithItsCalibration) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto one = CodecOf("kvstow-cal(run=1)"), two = CodecOf("kvstow-cal(run=3)");
  const auto raw = Page(*one, 1);
  const EncodedPage page = *one->Encode(raw.page);
  ASSERT_TRUE(coder.Takes(*one));
  const uint64_t bytes = coder.codec_bytes();
  calibrations_.Remove(ids_[0]);
  EXPECT_FALSE(coder.Takes(*one));
  EXPECT_FALSE(Decodes(coder, page, Bodies(page)));
  EXPECT_TRUE(coder.Takes(*two));
  EXPECT_GT(coder.codec_bytes(), 0u);
  EXPECT_NE(coder.codec_bytes(), bytes);
}

TEST_F(DeviceCoderTest, TheBytesOfCodecsAreBounded) {
  const auto bytes_of = [&](const Codec& codec) {
    DeviceCoder coder(&gpu_, calibrations_, options_);
    EXPECT_TRUE(coder.Takes(codec));
    return coder.codec_bytes();
  };
  auto one = CodecOf("kvstow-cal(run=3)"), two = CodecOf("kvstow-cal(run=1)");
  if (bytes_of(*one) > bytes_of(*two)) std::swap(one, two);
  const uint64_t bytes = bytes_of(*two);  // of the larger one
  options_.most_codec_bytes = bytes;
  DeviceCoder coder(&gpu_, calibrations_, options_);
  EXPECT_TRUE(coder.Takes(*one));
  EXPECT_FALSE(coder.Takes(*two)) << "the first is in use";
  EXPECT_TRUE(coder.Takes(*one));
  clock_.Advance(options_.rest);
  EXPECT_TRUE(coder.Takes(*two)) << "nobody used the first for a while";
  EXPECT_EQ(coder.codec_bytes(), bytes);
  EXPECT_FALSE(coder.Takes(*one));
  options_.most_codec_bytes = bytes - 1;
  DeviceCoder small(&gpu_, calibrations_, options_);
  EXPECT_FALSE(small.Takes(*two)) << "not even alone";
}

// Mean queries of a calibration are there too, and pages of it ask.
TEST_F(DeviceCoderTest, MeanQueriesCount) {
  constexpr uint32_t kQueryHeads = 4;
  const auto blob = FitCorrelated(spec_, 2, {}, /*with_sensitivity=*/true);
  const auto coded_with = [&](const std::string& calibration, uint64_t& bytes) {
    const CalibrationId id = (*calibrations_.Add(AsBytes(calibration)))->id();
    DeviceCoder coder(&gpu_, calibrations_, options_);
    const auto codec = CodecOf("kvstow-cal(run=2,step=1)");
    const Pages pages = {Page(*codec, 1)};
    const auto coded = coder.Encode(pages);
    ExpectAsTheCpus(pages[0], coded[0]);
    bytes = coder.codec_bytes();
    calibrations_.Remove(id);
    return coded[0]->segments;
  };
  uint64_t without = 0, with = 0;
  const auto plain = coded_with(*blob, without);
  const auto asked =
      coded_with(WithMeans(spec_, *blob, RandomMeans(spec_, {0, 2}, kQueryHeads)), with);
  EXPECT_EQ(with - without, 2 * 4 * kQueryHeads * 16);
  EXPECT_FALSE(std::ranges::equal(plain[0].span(), asked[0].span()));
}

// And so is all of a vocabulary.
TEST_F(DeviceCoderTest, VocabulariesCount) {
  const auto blob = FitVocabulary(spec_, 2, true);
  const auto calibration = *calibrations_.Add(AsBytes(*blob));
  DeviceCoder coder(&gpu_, calibrations_, options_);
  ASSERT_TRUE(coder.Takes(*CodecOf("kvstow-cal(run=2,step=0.5)")));
  uint64_t matrices = 0, means = 0;
  for (const CalibratedRun& run : calibration->runs())
    matrices += 4 * run.width() * run.rank() + 4 * (run.width() + run.rank());
  const VocabularyTables& tables = *VocabularyOf(*calibration);
  const Vocabulary& of = *tables.vocabulary;
  for (const VocabularyRun& run : tables.runs) means += 2 * of.width() * run.means.columns();
  EXPECT_EQ(coder.codec_bytes() - matrices - means,
            4 * of.projection().size() + 4 * of.signatures().size() + of.codes().size());
}

// The GPU finds tokens, puts them into headers, and decodes by them.
TEST_F(DeviceCoderTest, PagesOfAVocabularyHaveTheirTokens) {
  const auto blob = FitVocabulary(spec_, 2, true);
  ASSERT_TRUE(calibrations_.Add(AsBytes(*blob)).ok());
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=2,step=0.5)");
  auto page = Page(*codec, 1);
  const std::vector<uint8_t>& raw =
      raws_.emplace_back(VocabularyPage(spec_, kTokens, 7, page.page.first_position));
  page.page.raw = raw, page.page.raw_digest = Xxh3_128(raw);
  const auto coded = coder.Encode(Pages{page});
  ExpectAsTheCpus(page, coded[0]);
  EXPECT_EQ(coded[0]->header.token_ids, VocabularyText(kTokens, 7));
  std::vector<uint8_t> out;
  ASSERT_TRUE(Decodes(coder, *coded[0], Bodies(*coded[0]), &out));
  EXPECT_LT(RelativeError(spec_.dtype, DecodeOnTheCpu(*coded[0]), out), kJointDeviceError);
}

TEST_F(DeviceCoderTest, SmallPagesAndOtherCodecsAreTheCpus) {
  options_.least_page_bytes = PageBytes(spec_, kTokens);
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3)");
  const Pages pages = {Page(*codec, 1), Page(*codec, 1, kTokens, kTokens - 1)};
  const auto coded = coder.Encode(pages);
  EXPECT_TRUE(coded[0].has_value());
  EXPECT_FALSE(coded[1].has_value());
  const EncodedPage page = *codec->Encode(pages[1].page);
  EXPECT_FALSE(Decodes(coder, page, Bodies(page)));
  for (const char* recipe : {"int8", "raw", "kvstow", "kvstow-cal(run=3,ratio=8)",
                             "column(name=attn_sum)|class|kvstow-cal(run=3)"}) {
    EXPECT_FALSE(coder.Takes(*CodecOf(recipe))) << recipe;
  }
  const auto open = *MakeCodec(*ParseRecipe("kvstow-cal(run=3)"), spec_, calibrations_);
  EXPECT_FALSE(coder.Takes(*open)) << "nobody knows which calibration it has";
}

TEST_F(DeviceCoderTest, WithoutAGpuAllIsTheCpus) {
  const auto codec = CodecOf("kvstow-cal(run=3)");
  const auto raw = Page(*codec, 1);
  const EncodedPage page = *codec->Encode(raw.page);
  DeviceCoder& none = DeviceCoder::None();
  EXPECT_FALSE(none.on());
  EXPECT_FALSE(none.Takes(*codec));
  EXPECT_FALSE(none.Encode({&raw, 1})[0].has_value());
  EXPECT_FALSE(Decodes(none, page, Bodies(page)));
  // A GPU without an engine for them is one for other work.
  DeviceCoder host(&HostDevice(), calibrations_, options_);
  EXPECT_TRUE(host.on());
  EXPECT_FALSE(host.Takes(*codec));
  EXPECT_FALSE(host.Encode({&raw, 1})[0].has_value());
  EXPECT_EQ(host.codec_bytes(), 0u);
}

TEST_F(DeviceCoderTest, ThreadsShareIt) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto one = CodecOf("kvstow-cal(run=1)"), two = CodecOf("kvstow-cal(run=3)");
  Pages pages;
  for (uint64_t i = 0; i < 4; ++i) pages.push_back(Page(i % 2 == 0 ? *one : *two, i));
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (const DeviceCoder::PageOfCodec& page : pages) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        const auto coded = coder.Encode({&page, 1})[0];
        // While another thread makes the codec, the page is the CPU's.
        const EncodedPage got = coded.has_value() ? *coded : *page.codec->Encode(page.page);
        std::vector<uint8_t> out(page.page.raw.size());
        if (!coder.Decode(spec_, got.header, Bodies(got), {}, out)) out = DecodeOnTheCpu(got);
        if (RelativeError(spec_.dtype, DecodeOnTheCpu(got), out) < kJointDeviceError) ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 20);
}

// A worker's memory of the same GPU takes the page without the host.
TEST_F(DeviceCoderTest, PagesGoToSharedMemoryOfTheGpu) {
  DeviceCoder coder(&gpu_, calibrations_, options_);
  const auto codec = CodecOf("kvstow-cal(run=3)");
  const auto raw = Page(*codec, 1);
  const EncodedPage page = *codec->Encode(raw.page);
  const auto due = DecodeOnTheCpu(page);
  const auto sharing = MakeHostSharing("a GPU");
  LocalGpu local(gpu_, *sharing, 1 << 20, coder);
  const auto memory = local.Share(1 << 20, sharing->uuid()).value();
  Space space;
  space.spec = spec_;
  GpuPage to = *GpuPage::At(local, space, memory, 4096, due.size());
  const PageRange all{{0, spec_.layers}, {0, kTokens}};
  ASSERT_TRUE(to.Decode(page.header, Bodies(page), all, calibrations_).ok());
  EXPECT_TRUE(to.coded_there());
  std::vector<uint8_t> out(due.size());
  ASSERT_TRUE(sharing->ToHost(memory->bytes().subspan(4096, out.size()), out.data()).ok());
  EXPECT_LT(RelativeError(spec_.dtype, due, out), kJointDeviceError);

  GpuPage part = *GpuPage::At(local, space, memory, 0, due.size());
  EXPECT_TRUE(absl::IsUnimplemented(
      part.Decode(page.header, Bodies(page), {{0, 1}, {0, kTokens}}, calibrations_)));
  EXPECT_FALSE(part.coded_there());
}

// A page whose bodies are as they were put, and do not decode.
TEST_F(DeviceCoderTest, WhatDoesNotDecodeIsAsCorruptAsByTheCpu) {
  const auto codec = CodecOf("kvstow-cal(run=1,step=0.5)");
  const EncodedPage good = *codec->Encode(Page(*codec, 1).page);
  EncodedPage noise = good;
  noise.segments[1] = SharedBytes::Take(std::string(good.segments[1].size(), '\xff'));
  noise.header.segments[1].digest = Xxh3(noise.segments[1].span());
  noise.header_bytes = SharedBytes::Take(SerializePageHeader(noise.header));

  Space space;
  space.id = 1, space.name = "s", space.spec = spec_;
  DeviceCoder coder(&gpu_, calibrations_, options_);
  Metrics metrics("test");
  for (DeviceCoder* const by : {&DeviceCoder::None(), &coder}) {
    SCOPED_TRACE(by->on() ? "with a GPU" : "without");
    TieredStoreParts parts;
    parts.tiers = {MakeNoopTier(), MakeMemoryTier(HostDevice()), MakeNoopTier()};
    parts.catalog = MakeNoopCatalog(*parts.tiers[2]);
    TieredStoreOptions options;
    options.budget_bytes = {0, 1 << 20, 0};
    const auto store = std::move(TieredStore::Open(options, std::move(parts)).value());
    PageReader reader(*store, calibrations_, metrics, nullptr, nullptr, *by);
    const auto put = [&](const EncodedPage& page, const char* key) {
      PageToStore out{.name = {.space = 1, .key = key}};
      PageHeader header = page.header;
      header.key = key;
      out.header = SharedBytes::Take(SerializePageHeader(header));
      out.raw_digest = Xxh3_128(AsBytes(absl::string_view(key)));
      out.tokens = header.tokens;
      for (const SegmentInfo& s : header.segments) {
        out.facts.push_back({.bytes = s.bytes, .gain = s.gain, .digest = s.digest});
      }
      out.bodies = page.segments;
      EXPECT_TRUE(store->Put(out).ok());
    };
    const auto get = [&](const char* key) {
      v1::GetPage request;
      request.set_key(key);
      return reader.Fetch(space, {}, v1::RAW, request, Checks::kReader).reply;
    };
    ASSERT_TRUE(store->SaveSpace({.id = 1, .bytes = SharedBytes::Take(std::string("s"))}).ok());
    put(good, "good");
    put(noise, "noise");
    EXPECT_EQ(get("noise").status(), v1::CORRUPT);
    EXPECT_EQ(get("noise").status(), v1::MISS) << "it was dropped";
    EXPECT_EQ(get("good").status(), v1::HIT) << "the GPU goes on";
    EXPECT_LT(get("good").estimated_error(), 0.1);
    // Gains that are no numbers say nothing of what is left.
    for (const float gain :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      EncodedPage odd = good;
      odd.header.segments[0].gain = gain;
      const std::string key = absl::StrCat("gain of ", gain);
      put(odd, key.c_str());
      EXPECT_EQ(get(key.c_str()).status(), v1::HIT);
      EXPECT_EQ(get(key.c_str()).estimated_error(), 1);
    }
    EXPECT_EQ(coder.Takes(*codec), true);
  }
}

}  // namespace
}  // namespace kvstow::testing
