// Pages at rest: encoding gives these bytes, and these bytes decode, for ever. A golden file is the
// page header's size (uint32), the header, then the bodies one after another.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/pages.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

struct Golden {
  const char* file;
  const char* recipe;
  double error;  // of the whole page, relative to its energy: at most this
  uint32_t tokens = 5;
  RopeSpec other = {};  // of the middle layer
  uint64_t first_position = 640;
  DType dtype = DType::kF16;
  RopeSpec rope = {.layout = RopeSpec::Layout::kHalf, .theta = 100000};
  bool falls_back = false;  // the page has a NaN

  friend void PrintTo(const Golden& g, std::ostream* out) { *out << g.recipe; }
};

class GoldenPage : public ::testing::TestWithParam<Golden> {};

KvSpec SpecOf(const Golden& golden) {
  KvSpec spec = testing::SpecOf(golden.dtype, 3, 2, 20, 16, std::max(golden.tokens, 8u));
  spec.rope = golden.rope;
  if (golden.other != RopeSpec()) spec.other_rope = {golden.other, {1}};
  return spec;
}

std::string FileOf(const EncodedPage& page) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(page.header_bytes.size()));
  out.PutBytes(page.header_bytes.span());
  for (const SharedBytes& body : page.segments) out.PutBytes(body.span());
  return std::move(out).Take();
}

TEST_P(GoldenPage, HasTheseBytesAndDecodes) {
  const uint32_t tokens = GetParam().tokens;
  const KvSpec spec = SpecOf(GetParam());
  auto raw = testing::GaussianPage(spec, tokens, 42);
  if (GetParam().falls_back) raw[0] = raw[1] = 0xff;
  const auto codec = MakeCodec(*ParseRecipe(GetParam().recipe), spec);
  ASSERT_TRUE(codec.ok()) << codec.status();
  const auto page = (*codec)->Encode(
      {.raw = raw, .tokens = tokens, .first_position = GetParam().first_position, .key = "golden"});
  ASSERT_TRUE(page.ok()) << page.status();

  const std::string path = TestsPath(absl::StrCat("golden/", GetParam().file));
  std::ifstream in(path, std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  if (FileOf(*page) != golden) {
    const auto made = std::filesystem::temp_directory_path() / GetParam().file;
    std::ofstream(made, std::ios::binary) << FileOf(*page);
    FAIL() << "the page differs from " << path << "; what was made is in " << made;
  }

  ByteReader reader(AsBytes(golden));
  const auto header = ParsePageHeader(reader.GetBytes(reader.Get<uint32_t>()));
  ASSERT_TRUE(header.ok()) << header.status();
  std::vector<SharedBytes> bodies;
  for (const SegmentInfo& s : header->segments) {
    bodies.push_back(SharedBytes::CopyOf(reader.GetBytes(s.bytes)));
  }
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(VerifySegments(*header, bodies).ok());
  std::vector<uint8_t> back(raw.size());
  ASSERT_TRUE(DecodePage(*header, bodies, back).ok());
  EXPECT_EQ(header->fell_back, GetParam().falls_back);
  if (GetParam().error == 0) {
    EXPECT_EQ(back, raw);
  } else {
    EXPECT_LE(testing::RelativeError(spec.dtype, raw, back), GetParam().error);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Golden, GoldenPage,
    ::testing::Values(
        Golden{"page_v1_raw.bin", "raw", 0},
        Golden{"page_v1_int8.bin", "run(2)|affine(bits=8,group=64)", 4e-5},
        Golden{"page_v1_fp8.bin", "fp8", 8e-4},
        Golden{"page_v1_sparse.bin",
               "key_norm|protect(first=1)|budget(keep=0.4)|affine(bits=8,group=64)", 0.7},
        Golden{"page_v1_sparse_merged.bin",
               "key_norm|protect(first=1)|budget(keep=0.4,merge=1)|affine(bits=8,group=64)", 1},
        Golden{"page_v1_sparse_list.bin", "position|budget(keep=0.1)", 1, 20},
        Golden{"page_v1_int8_tensor.bin", "int8-tensor", 4e-4},
        Golden{"page_v1_symmetric4.bin", "symmetric(bits=4,group=16,k=channel)", 0.02},
        Golden{"page_v1_q8_0.bin", "q8_0", 4e-5}, Golden{"page_v1_q4_0.bin", "q4_0", 0.009},
        Golden{"page_v1_nvfp4.bin", "nvfp4", 0.011}, Golden{"page_v1_mxfp4.bin", "mxfp4", 0.017},
        Golden{"page_v1_mxfp8.bin", "mxfp8", 1.5e-3},
        Golden{"page_v1_sageattention.bin", "sageattention", 4e-5},
        Golden{"page_v1_turboquant3.bin", "turboquant3(norm=corrected)", 0.05},
        Golden{"page_v1_turboquant4.bin", "turboquant4", 0.013},
        Golden{"page_v1_turboquant4_prod.bin", "turboquant4-prod", 0.08},
        Golden{"page_v1_turboquant2_5.bin", "turboquant2.5", 0.12},
        Golden{"page_v1_qjl.bin", "qjl", 0.7}, Golden{"page_v1_polarquant.bin", "polarquant", 0.04},
        Golden{"page_v1_gear2.bin", "gear2(share=0.1)", 0.04, 40},
        Golden{"page_v1_mla8.bin", "mla8(rope=4)", 5e-5},
        Golden{"page_v1_cachegen.bin", "cachegen", 0.3, 24},
        Golden{"page_v1_cachegen_lmcache.bin", "cachegen-lmcache(k_from=1)", 0.05, 24},
        Golden{"page_v1_xkv.bin", "xkv", 0.8, 24},
        Golden{"page_v1_rotatekv4.bin", "rotatekv4", 0.06, 24},
        Golden{
            "page_v1_kvstow_classes.bin",
            "key_norm|norm(kind=rank)|class(power=0.5)|planes(step=0.51,levels=3,k=1.1,depth=2.5)",
            0.1, 20},
        Golden{"page_v1_think.bin", "think", 0.3},
        Golden{"page_v1_svd.bin", "k|svd(8,4,0)|v|keep", 0.2},
        Golden{"page_v1_anchor_residual.bin",
               "anchor(every=2)|affine(bits=8)|rest|affine(bits=4)|residual|affine(bits=3)", 1e-3},
        Golden{"page_v1_kivi4.bin", "kivi4", 0.007},
        Golden{"page_v1_rotated8.bin", "rotated8", 6e-5},
        Golden{"page_v1_lossless.bin", "run(2)|lossless", 0, 40},
        Golden{"page_v1_kvstow.bin", "planes(step=0.51,levels=3,k=1.1,depth=2.5)", 0.06, 24},
        Golden{"page_v1_kvstow_keys.bin", "planes(step=0.65,levels=3,k=1.1,depth=2.5,keys=1)", 0.06,
               24},
        Golden{"page_v1_kvstow_normed.bin", "planes(step=0.65,levels=3,k=1.1,depth=2.5,keys=2)",
               0.07, 24},
        Golden{"page_v1_kvstow_first.bin", "kvstow", 0.06, 24, {}, 0},
        Golden{"page_v1_other_rope.bin",
               "planes(step=0.65,levels=3,k=1.1,depth=2.5,keys=1)",
               0.06,
               24,
               {.theta = 50}},
        Golden{"page_v1_lossless_bf16.bin", "run(2)|lossless", 0, 12, {}, 640, DType::kBF16},
        Golden{"page_v1_lossless_f32.bin", "run(2)|lossless", 0, 6, {}, 640, DType::kF32},
        Golden{"page_v1_fell_back.bin",
               "int8",
               0,
               2,
               {},
               640,
               DType::kF16,
               {.layout = RopeSpec::Layout::kHalf},
               true},
        Golden{"page_v1_rope_interleaved.bin",
               "planes(step=0.51,levels=3,k=1.1,depth=2.5)",
               0.06,
               9,
               {},
               640,
               DType::kF16,
               {.layout = RopeSpec::Layout::kInterleaved}},
        Golden{"page_v1_rope_llama3.bin",
               "planes(step=0.51,levels=3,k=1.1,depth=2.5)",
               0.06,
               9,
               {},
               640,
               DType::kF16,
               {.layout = RopeSpec::Layout::kHalf,
                .scaling = RopeSpec::Scaling::kLlama3,
                .theta = 5e5,
                .factor = 8,
                .low_freq_factor = 1,
                .high_freq_factor = 4,
                .original_context = 8192}}),
    [](const auto& info) {
      const std::string file = info.param.file;
      return file.substr(8, file.size() - 12);
    });

}  // namespace
}  // namespace kvstow
