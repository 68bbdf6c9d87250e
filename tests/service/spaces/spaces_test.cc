// Spaces: what they are called, what tells them apart, and their record at rest.
#include "service/spaces/spaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "proto/wire/spec.h"
#include "service/spaces/space_record.h"
#include "tests/paths.h"
#include "tests/service/wire_client.h"

namespace kvstow::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SpacesTest : public ::testing::Test {
 protected:
  SpacesTest() { Remake({}); }
  void Remake(Spaces::Options options) {
    spaces_ = std::make_unique<Spaces>(
        options, calibrations_, [this] { return ++last_id_; },
        [this](const SpaceRecord& record) {
          if (save_.ok()) saved_.push_back(record);
          return save_;
        });
  }
  absl::StatusOr<Spaces::Opened> Open(const std::string& name, const std::string& recipe,
                                      std::optional<SpaceFidelity> fidelity = {}) {
    return spaces_->Open(
        Caller{}, {.name = name, .spec = SmallSpec(), .recipe = recipe, .fidelity = fidelity});
  }

  SpaceId last_id_ = 0;
  absl::Status save_;
  std::vector<SpaceRecord> saved_;
  Calibrations calibrations_{""};
  std::unique_ptr<Spaces> spaces_;
};

TEST_F(SpacesTest, OpenMakesThenFinds) {
  const auto made = Open("s", "raw");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->created);
  EXPECT_EQ(made->space->promise.fidelity, SpaceFidelity::kExact);
  const auto again = Open("s", "");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->created);
  EXPECT_EQ(again->space, made->space);
  EXPECT_EQ(spaces_->Find(made->space->id), made->space);
  EXPECT_EQ(saved_.size(), 1u);
}

TEST_F(SpacesTest, TheDefaultRecipeIsTheServers) {
  Remake({.default_recipe = "raw"});
  EXPECT_EQ((*Open("s", "")).space->recipe, "raw");
}

TEST_F(SpacesTest, WhatDiffersIsNamed) {
  ASSERT_TRUE(Open("s", "int8").ok());
  KvSpec other = SmallSpec();
  other.dtype = DType::kBF16;
  const auto spec = spaces_->Open(Caller{}, {.name = "s", .spec = other});
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("dtype"));
  EXPECT_THAT(std::string(Open("s", "raw").status().message()),
              HasSubstr("recipe: int8 here, raw asked"));
  EXPECT_THAT(std::string(Open("s", "int8", SpaceFidelity::kExact).status().message()),
              HasSubstr("fidelity: DENSE here, EXACT asked"));
}

TEST_F(SpacesTest, ASpaceOfAnEarlierVersionKeepsWhatItsRecipeMeant) {
  ASSERT_TRUE(Open("s", "planes(step=0.65,levels=3,k=1.1,depth=2.5)").ok());
  // As a version would have saved it whose `kvstow` meant that.
  auto earlier = std::make_shared<Space>(*spaces_->All()[0]);
  earlier->recipe = "kvstow";
  Remake({});
  const SpaceRecord record{.id = earlier->id, .bytes = SharedBytes::Take(SerializeSpace(*earlier))};
  ASSERT_EQ(spaces_->Recover(std::vector{record}), 0u);
  for (const char* const recipe : {"kvstow", ""}) {
    const auto again = Open("s", recipe);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->space->pipeline, earlier->pipeline);
  }
  EXPECT_THAT(std::string(Open("s", "kvstow(step=0.65)").status().message()),
              HasSubstr("recipe: kvstow here, kvstow(step=0.65) asked"));
}

TEST_F(SpacesTest, AutoGoesByWhetherTheModelNormsItsKeys) {
  Remake({.default_recipe = "auto(divergence=0.02)"});
  const auto open = [&](const std::string& name, const std::string& recipe, bool normed) {
    return spaces_->Open(
        Caller{}, {.name = name, .spec = SmallSpec(), .recipe = recipe, .normed_keys = normed});
  };
  int made = 0;
  for (const char* const recipe : {"", "auto", "auto(divergence=0.02)"}) {
    SCOPED_TRACE(recipe);
    const std::string name = absl::StrCat("normed", ++made), other = absl::StrCat("usual", made);
    const auto normed = open(name, recipe, true), usual = open(other, recipe, false);
    ASSERT_TRUE(normed.ok()) << normed.status();
    ASSERT_TRUE(usual.ok()) << usual.status();
    EXPECT_THAT(normed->space->pipeline, HasSubstr("keys=2"));
    EXPECT_THAT(usual->space->pipeline, HasSubstr("keys=1"));
    // A worker that does not say it gets the space as it is. A worker that says it gets only a
    // space that goes by it.
    EXPECT_TRUE(open(name, recipe, true).ok());
    EXPECT_TRUE(open(name, recipe, false).ok());
    EXPECT_THAT(std::string(open(other, recipe, true).status().message()),
                HasSubstr("for a model that norms its keys"));
  }
  for (const char* const recipe : {"kvstow", "auto,hot=raw,cold=kvstow"}) {
    const std::string name = absl::StrCat("named", ++made);
    for (const bool again : {false, true}) {
      const auto named = open(name, recipe, true);
      ASSERT_TRUE(named.ok()) << named.status();
      EXPECT_EQ(named->created, !again);
      EXPECT_THAT(named->space->pipeline, HasSubstr("keys=1"));
    }
  }
}

TEST_F(SpacesTest, LossyIsNeverExact) {
  EXPECT_EQ(Open("s", "int8", SpaceFidelity::kExact).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Open("d", "raw", SpaceFidelity::kDense).ok());
  EXPECT_TRUE(Open("e", "raw", SpaceFidelity::kExact).ok());
  EXPECT_NE((*Open("d", "")).space->fingerprint, (*Open("e", "")).space->fingerprint);
}

TEST_F(SpacesTest, ARecipeWhoseCalibrationIsMissingSaysWhatToDo) {
  const auto opened = Open("s", "kvstow-cal");
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()),
              AllOf(HasSubstr("recipe 'kvstow-cal'"), HasSubstr("kvstow codec calibrate"),
                    HasSubstr("--calibrations FOLDER")));
}

TEST_F(SpacesTest, OnlySparseDropsTokens) {
  const auto refused = [&](const std::string& recipe, std::optional<SpaceFidelity> fidelity,
                           const char* says) {
    const auto opened = Open("refused", recipe, fidelity);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument) << recipe;
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(says)) << recipe;
  };
  refused("knorm(keep=0.5)|int8", std::nullopt, "ask for fidelity SPARSE");
  refused("knorm(keep=0.5)|int8", SpaceFidelity::kDense, "ask for fidelity SPARSE");
  refused("knorm(keep=0.5)|int8", SpaceFidelity::kExact, "loses bits");
  refused("knorm(keep=0.5)|raw", SpaceFidelity::kExact, "loses bits");
  refused("hot=int8,cold=knorm(keep=0.5)|int8", SpaceFidelity::kDense, "ask for fidelity SPARSE");
  refused("hot=knorm(keep=0.5)|int8,cold=int8", SpaceFidelity::kSparse, "a hot form must keep");
  for (const char* recipe : {"knorm(keep=0.5)|int8", "hot=int8,cold=knorm(keep=0.5)|int8", "int8",
                             "raw", "streamingllm(keep=0.1)"}) {
    const auto opened =
        Open(recipe[0] == 'k' ? "a" : std::to_string(last_id_), recipe, SpaceFidelity::kSparse);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->space->promise, SpacePromise{SpaceFidelity::kSparse});
  }
  EXPECT_TRUE(Open("a", "").ok()) << "whoever asks for nothing gets the space's own";
}

TEST_F(SpacesTest, WhatQueriesLookedAtDropsTokensInPrivateSpacesOnly) {
  SpaceToOpen request{.name = "s",
                      .spec = SmallSpec(),
                      .recipe = "snapkv(keep=0.25)|int8",
                      .fidelity = SpaceFidelity::kSparse};
  const auto shared = spaces_->Open(Caller{}, request);
  EXPECT_EQ(shared.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shared.status().message()),
              AllOf(HasSubstr("by what queries looked at (attn_window)"), HasSubstr("--private")));
  request.is_private = true;
  const auto opened = spaces_->Open(Caller{}, request);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->space->promise.is_private);
  const auto parsed = ParseSpace(saved_.back().bytes.span(), calibrations_);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed)->promise, opened->space->promise);
  request.is_private = false;
  EXPECT_THAT(std::string(spaces_->Open(Caller{}, request).status().message()),
              HasSubstr("it is private to a session"));
  request.is_private = std::nullopt;
  EXPECT_TRUE(spaces_->Open(Caller{}, request).ok());

  request.name = "t";
  request.recipe = "expected-attention(keep=0.5)|int8";
  EXPECT_EQ(spaces_->Open(Caller{}, request).status().code(), absl::StatusCode::kFailedPrecondition)
      << "no statistics of queries are here";
}

TEST_F(SpacesTest, WhatQueriesLookedAtMaySayHowFinelyTokensAreCodedForAll) {
  const auto recipe = SpaceRecipe::Parse("column(name=attn_sum)|class|kvstow-cal");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const auto promise = PromiseOf(*recipe, /*lossless=*/false, std::nullopt, /*is_private=*/false);
  ASSERT_TRUE(promise.ok()) << promise.status();
  EXPECT_EQ(*promise, SpacePromise{SpaceFidelity::kDense});
}

TEST_F(SpacesTest, Float8IsNeverCodedAgain) {
  KvSpec spec = SmallSpec();
  spec.dtype = DType::kF8E4M3;
  for (const char* recipe : {"int8", "kvstow", "knorm(keep=0.5)", "knorm(keep=0.5)|int8"}) {
    const auto opened = spaces_->Open(
        Caller{},
        {.name = "s", .spec = spec, .recipe = recipe, .fidelity = SpaceFidelity::kSparse});
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument) << recipe;
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("take only 'raw'")) << recipe;
  }
  EXPECT_TRUE(spaces_->Open(Caller{}, {.name = "s", .spec = spec, .recipe = "lossless"}).ok());
}

TEST_F(SpacesTest, APromiseOfALaterVersionIsNotGuessedAt) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto promise = PromiseFromByte(static_cast<uint8_t>(byte));
    const int fidelity = byte & 127;
    EXPECT_EQ(promise.ok(), fidelity >= 1 && fidelity <= 3) << byte;
    if (promise.ok()) {
      EXPECT_EQ(PromiseByte(*promise), byte);
    }
  }
}

TEST_F(SpacesTest, NamesAreChecked) {
  const std::string names[] = {"", "a b", "a\n", "a\x80", std::string(129, 'a')};
  for (const std::string& name : names) {
    EXPECT_EQ(Open(name, "raw").status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_TRUE(Open(std::string(128, 'a'), "raw").ok());
  EXPECT_TRUE(Open("Az09._-/", "raw").ok());
}

TEST_F(SpacesTest, ThereIsALimit) {
  Remake({.max_spaces = 2});
  ASSERT_TRUE(Open("a", "raw").ok());
  ASSERT_TRUE(Open("b", "raw").ok());
  EXPECT_EQ(Open("c", "raw").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Open("a", "raw").ok());
}

TEST_F(SpacesTest, ASpaceThatCannotBeSavedIsNotOpened) {
  save_ = absl::UnavailableError("the disk is gone");
  EXPECT_EQ(Open("s", "raw").status(), save_);
  EXPECT_EQ(spaces_->Find(Caller{}, "s").status().code(), absl::StatusCode::kNotFound);
  save_ = absl::OkStatus();
  EXPECT_TRUE(Open("s", "raw").ok()) << "the name is free again";
}

TEST_F(SpacesTest, WithoutASpecItMustExist) {
  EXPECT_EQ(spaces_->Open(Caller{}, {.name = "s"}).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Open("s", "raw").ok());
  EXPECT_TRUE(spaces_->Open(Caller{}, {.name = "s"}).ok());
}

TEST_F(SpacesTest, RecoverBringsThemBackAndSkipsWhatIsDamaged) {
  ASSERT_TRUE(Open("a", "raw").ok());
  ASSERT_TRUE(Open("b", "int8").ok());
  std::vector<SpaceRecord> records = saved_;
  records.push_back({.id = 3, .bytes = SharedBytes::Take(std::string("nonsense"))});
  records.push_back({.id = 99, .bytes = records[0].bytes});  // filed under another id
  const auto before = spaces_->All();
  Remake({});
  EXPECT_EQ(spaces_->Recover(records), 2u);
  const auto after = spaces_->All();
  ASSERT_EQ(after.size(), 2u);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i]->id, before[i]->id);
    EXPECT_EQ(after[i]->fingerprint, before[i]->fingerprint);
    EXPECT_EQ(after[i]->spec, before[i]->spec);
    EXPECT_EQ(after[i]->recipe, before[i]->recipe);
    EXPECT_EQ(after[i]->promise, before[i]->promise);
    EXPECT_TRUE(after[i]->codec->recipe() == before[i]->codec->recipe());
  }
}

TEST_F(SpacesTest, OfTwoRecordsOfOneNameTheNewerCounts) {
  ASSERT_TRUE(Open("s", "raw").ok());
  Remake({});
  ASSERT_TRUE(Open("s", "int8").ok());
  for (const auto& order : {saved_, std::vector<SpaceRecord>{saved_[1], saved_[0]}}) {
    Remake({});
    EXPECT_EQ(spaces_->Recover(order), 0u);
    ASSERT_EQ(spaces_->All().size(), 1u);
    EXPECT_EQ(spaces_->All()[0]->id, saved_[1].id);
  }
}

TEST(FingerprintTest, EveryFieldCounts) {
  std::vector<KvSpec> specs(35, SmallSpec());
  specs[1].model = "x";
  specs[2].revision = "x";
  specs[3].layers = 5;
  specs[4].kv_heads = 3;
  specs[5].head_dim_k = 32;
  specs[6].head_dim_v = 32;
  specs[7].dtype = DType::kBF16;
  specs[8].page_tokens = 32;
  specs[9].rank = 1;
  specs[10].world_size = 2;
  specs[11].rope.layout = RopeSpec::Layout::kHalf;
  specs[12].rope.scaling = RopeSpec::Scaling::kYarn;
  specs[13].rope.k_after_rope = false;
  specs[14].rope.rotary_dims = 32;
  specs[15].rope.theta = 1;
  specs[16].rope.factor = 2;
  specs[17].rope.low_freq_factor = 2;
  specs[18].rope.high_freq_factor = 2;
  specs[19].rope.original_context = 2;
  specs[20].engine = "x";
  // The same bytes in other fields must not meet.
  specs[21].model = "test/smal";
  specs[21].revision = "l1";
  specs[22].weight_quantization = "x";
  specs[23].adapter = "x";
  specs[24].kv_scales = "x";
  specs[25].layer_layout = "x";
  specs[26].sliding_window = 2;
  specs[27].rope_details.attention_factor = 2;
  specs[28].rope_details.mscale = 2;
  specs[29].rope_details.mscale_all_dim = 2;
  specs[30].rope_details.short_factors = {2};
  specs[31].rope_details.long_factors = {2};
  specs[32].rope_details.mrope_sections = {2};
  specs[33].other_rope = {.rope = {.theta = 5e5}, .layers = {1}};
  specs[34].other_rope = {.rope = {.theta = 5e5}, .layers = {1, 2}};
  for (size_t i = 1; i < specs.size(); ++i) {
    EXPECT_NE(FirstDifference(specs[0], specs[i]), "") << i;
    v1::KvSpec wire;
    ToProto(specs[i], wire);
    const auto back = FromProto(wire);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, specs[i]) << i << ": " << FirstDifference(specs[i], *back);
  }
  std::set<Fingerprint> seen;
  for (const KvSpec& spec : specs) seen.insert(FingerprintOf(spec, "raw", {SpaceFidelity::kExact}));
  seen.insert(FingerprintOf(specs[0], "raw", {SpaceFidelity::kDense}));
  seen.insert(FingerprintOf(specs[0], "raw", {SpaceFidelity::kSparse}));
  seen.insert(FingerprintOf(specs[0], "raw", {SpaceFidelity::kSparse, true}));
  seen.insert(FingerprintOf(specs[0], "affine(bits=8,group=64)", {SpaceFidelity::kDense}));
  EXPECT_EQ(seen.size(), specs.size() + 4);
}

std::string Golden(const std::string& name) {
  std::ifstream in(TestsPath("golden/" + name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The space that golden files hold.
Space GoldenSpace() {
  Space space;
  space.id = 7;
  space.name = "golden";
  space.spec = SmallSpec();
  space.spec.rope.layout = RopeSpec::Layout::kHalf;
  space.spec.rope.theta = 100000;
  space.spec.revision = kUnversioned;
  space.recipe = "raw";
  space.promise = {SpaceFidelity::kExact};
  space.codec = *MakeCodec(*ParseRecipe("raw"), space.spec);
  space.pipeline = "raw";
  return space;
}

// Records as they were written, for ever: of no tenant's space, and of a tenant's.
void ExpectGolden(const std::string& file, const std::string& tenant, OtherRope other = {},
                  const SavedEra& era = {}) {
  Space space = GoldenSpace();
  space.tenant = tenant;
  space.spec.other_rope = std::move(other);
  space.spec.adapter = "lora@1";
  space.spec.sliding_window = 4096;
  space.spec.rope.scaling = RopeSpec::Scaling::kLongRope;
  space.spec.rope_details.long_factors = {1, 1.5};
  space.spec.rope_details.mrope_sections = {8, 12, 12};
  space.fingerprint = FingerprintOf(space.spec, "raw", space.promise);
  const std::string golden = Golden(file);
  EXPECT_EQ(HexOf(AsBytes(SerializeSpace(space, era))), HexOf(AsBytes(golden)));
  EXPECT_EQ(EraOfSpace(AsBytes(golden)), era);

  Calibrations calibrations("");
  const auto parsed = ParseSpace(AsBytes(golden), calibrations);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed)->id, 7u);
  EXPECT_EQ((*parsed)->name, "golden");
  EXPECT_EQ((*parsed)->tenant, tenant);
  EXPECT_EQ((*parsed)->spec, space.spec);
  EXPECT_EQ((*parsed)->fingerprint, space.fingerprint);

  for (size_t n = 0; n < golden.size(); ++n) {
    EXPECT_FALSE(ParseSpace(AsBytes(golden.substr(0, n)), calibrations).ok()) << "cut at " << n;
  }
  std::string newer = golden;
  newer[0] = 10;
  EXPECT_EQ(ParseSpace(AsBytes(newer), calibrations).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SpaceRecordTest, AnEraStandsAtTheEnd) {
  for (const char* tenant : {"", "team-a"}) {
    Space space = GoldenSpace();
    space.tenant = tenant;
    space.fingerprint = FingerprintOf(space.spec, "raw", space.promise);
    const std::string without = SerializeSpace(space);
    EXPECT_EQ(EraOfSpace(AsBytes(without)), SavedEra());
    const SavedEra era{.key = 5, .generation = 3};
    const std::string record = SerializeSpace(space, era);
    std::string expected = without;
    expected[0] = static_cast<char>(expected[0] + 4);
    expected += std::string("\5\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16);
    EXPECT_EQ(HexOf(AsBytes(record)), HexOf(AsBytes(expected)));
    EXPECT_EQ(EraOfSpace(AsBytes(record)), era);
    Calibrations calibrations("");
    const auto parsed = ParseSpace(AsBytes(record), calibrations);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(SerializeSpace(**parsed), without);
    for (size_t n = 0; n < record.size(); ++n) {
      EXPECT_FALSE(ParseSpace(AsBytes(record.substr(0, n)), calibrations).ok()) << "cut at " << n;
    }
  }
}

TEST(SpaceRecordTest, GoldenFile) { ExpectGolden("service_space_v2.bin", ""); }
TEST(SpaceRecordTest, GoldenFileOfATenantsSpace) { ExpectGolden("service_space_v3.bin", "team-a"); }

TEST(SpaceRecordTest, GoldenFilesOfSpacesWithTwoRopes) {
  const OtherRope other{.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 1e6},
                        .layers = {1, 3}};
  ExpectGolden("service_space_v4.bin", "", other);
  ExpectGolden("service_space_v5.bin", "team-a", other);
}

TEST(SpaceRecordTest, GoldenFilesOfSpacesWithAnEra) {
  const OtherRope other{.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 1e6},
                        .layers = {1, 3}};
  const SavedEra era{.key = 0x0123456789abcdef, .generation = 3};
  ExpectGolden("service_space_v6.bin", "", {}, era);
  ExpectGolden("service_space_v7.bin", "team-a", {}, era);
  ExpectGolden("service_space_v8.bin", "", other, era);
  ExpectGolden("service_space_v9.bin", "team-a", other, era);
}

TEST(SpaceRecordTest, ARecordOfVersion1IsTheSpaceThatNamesNoMore) {
  Calibrations calibrations("");
  const auto parsed = ParseSpace(AsBytes(Golden("service_space_v1.bin")), calibrations);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Space space = GoldenSpace();
  EXPECT_EQ((*parsed)->spec, space.spec) << "a revision that was left empty is unversioned";
  EXPECT_EQ((*parsed)->fingerprint, FingerprintOf(space.spec, "raw", space.promise));
}

TEST_F(SpacesTest, ASpaceIsItsFingerprintNotItsNameAlone) {
  const std::string mine(AsString((*Open("s", "raw")).space->fingerprint));
  EXPECT_TRUE(spaces_->Find(Caller{}, "s", mine, SpaceUse::kRead).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(spaces_->Find(Caller{}, "s", "", SpaceUse::kRead).status()));
  EXPECT_TRUE(absl::IsNotFound(spaces_->Find(Caller{}, "t", mine, SpaceUse::kRead).status()));
  EXPECT_EQ(spaces_->mismatches(), 0u);
  const auto other = spaces_->Find(Caller{}, "s", std::string(16, 'x'), SpaceUse::kRead);
  EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("open it again"));
  EXPECT_EQ(spaces_->mismatches(), 1u);
}

TEST_F(SpacesTest, ANewSpaceNamesTheRevisionOfItsWeights) {
  KvSpec spec = SmallSpec();
  spec.revision = "";
  const auto silent = spaces_->Open(Caller{}, {.name = "s", .spec = spec});
  EXPECT_TRUE(absl::IsInvalidArgument(silent.status()));
  EXPECT_THAT(std::string(silent.status().message()),
              AllOf(HasSubstr("revision"), HasSubstr("unversioned")));
  spec.revision = kUnversioned;
  EXPECT_TRUE(spaces_->Open(Caller{}, {.name = "s", .spec = spec}).ok());
}

TEST_F(SpacesTest, AForgottenSpaceLeavesRoomForAnotherOfItsName) {
  Remake({.max_spaces = 1});
  const auto first = (*Open("s", "raw")).space;
  EXPECT_TRUE(absl::IsResourceExhausted(Open("t", "raw").status()));
  EXPECT_TRUE(spaces_->Forget(*first));
  EXPECT_FALSE(spaces_->Forget(*first));
  EXPECT_EQ(spaces_->Find(first->id), nullptr);
  const auto second = Open("s", "int8");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->created);
  EXPECT_NE(second->space->id, first->id);
  EXPECT_FALSE(spaces_->Forget(*first)) << "the name is another space's now";
  EXPECT_TRUE(spaces_->Find(Caller{}, "s").ok());
}

TEST_F(SpacesTest, PrivateSpacesThatNobodyNamesAreIdle) {
  ManualClock clock;
  Remake({.clock = &clock});
  const auto open = [&](const std::string& name, bool is_private) {
    ASSERT_TRUE(
        spaces_->Open(Caller{}, {.name = name, .spec = SmallSpec(), .is_private = is_private})
            .ok());
  };
  open("mine", true), open("yours", true), open("everyones", false);
  clock.Advance(std::chrono::seconds(60));
  ASSERT_TRUE(spaces_->Find(Caller{}, "yours").ok());
  clock.Advance(std::chrono::seconds(1));
  const auto idle = spaces_->IdlePrivate(std::chrono::seconds(60));
  ASSERT_EQ(idle.size(), 1u);
  EXPECT_EQ(idle[0]->name, "mine");
  const auto all = spaces_->IdlePrivate(Duration(0));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]->name, "mine") << "the longest first";
}

}  // namespace
}  // namespace kvstow::testing
