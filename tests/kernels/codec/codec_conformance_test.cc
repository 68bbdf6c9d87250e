// The codec conformance suite, on every recipe and every dtype.
#include "tests/conformance/codec_conformance.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "kernels/codec/presets.h"
#include "tests/conformance/codec_damage_conformance.h"

namespace kvstow::testing {
namespace {

std::vector<CodecCase> Cases() {
  std::vector<CodecCase> cases;
  const CodecCase recipes[] = {
      {"raw", 0},
      {"lossless", 0},
      {"affine(bits=8,group=64)", 4e-5},
      {"affine(bits=3,group=32,k=token,v=channel)", 0.030},
      {"affine(bits=4,k=tensor,v=tensor)", 0.04},
      {"symmetric(bits=4,group=32,k=channel,v=tensor)", 0.03},
      {"symmetric(bits=8,group=64)", 6e-5},
      {"minifloat(format=e4m3)", 8e-4},
      {"block(format=q8_0)", 4e-5},
      {"block(format=q4_0)", 0.009},
      {"block(format=nvfp4)", 0.011},
      {"block(format=mxfp4)", 0.016},
      {"block(format=mxfp8)", 1e-3},
      {"hadamard|codebook(bits=4,norm=plain)", 0.012},
      {"hadamard|codebook(bits=4,norm=corrected)", 0.012},
      {"hadamard|sketch(bits=5)", 0.03},
      {"outliers(share=0.5)|hadamard|codebook(bits=4)|rest|hadamard|codebook(bits=3)", 0.04},
      {"outliers(share=0.25,group=8)|affine(bits=8)|rest|affine(bits=6,group=32)", 8e-4},
      {"latent(rope=16)|hadamard|levels(2,2,4)|rest|affine(bits=8)", 6e-5},
      {"anchor(every=10)|affine(bits=8)|rest|affine(bits=6)", 2e-3},
      {"affine(bits=4)|residual|hadamard|levels(2,2)", 2e-4},
      {"hadamard|polar", 0.06},
      {"keep", 1e-6},
      {"k|outliers(share=0.6)|keep|rest|zero|v|keep", 0.4},
      {"sparse(share=0.1)|affine(bits=6,group=64,k=channel,v=token)|residual|lowrank(rank=4)",
       1e-3},
      {"sparse(share=0.02,k=token,v=channel)|hadamard|levels(4,4)", 6e-5},
      {"svd(8,7,6)", 2e-3},
      {"rope|merge(heads=4)|hadamard|clip(share=0.95,group=128)|affine(bits=6,group=128)", 4e-3},
      {"deltas(every=10,bins=256,early=0.1,middle=0.1,late=0.1)", 3e-3},
      {"bins(k=256,k_then=64,k_from=1,v=128,v_then=64,v_from=2)", 3e-3},
      {"rope|sharedbasis(k=1,v=1)", 1e-6},
      // Pipelines that leave much of a Gaussian: sketches, few bits, low rank.
      {"k|outliers(share=0.0625,group=32)|signs(rows=24)|rest|signs(rows=24)|v|affine(bits=4)",
       0.2},
      {"hadamard|sketch(bits=2)", 1},
      {"outliers(share=0.5)|hadamard|sketch(bits=3)|rest|hadamard|sketch(bits=2)", 0.8},
      {"outliers(share=0.5)|hadamard|sketch(bits=4)|rest|hadamard|sketch(bits=3)", 0.5},
      {"k|outliers(share=0.0625,group=32)|signs(rows=16)|rest|signs(rows=2)|v|affine(bits=2,group="
       "32)",
       1.2},
      {"deltas(every=10,bins=256,early=0.5,middle=1,late=1.5)", 0.5},
      {"rope|merge(heads=4)|hadamard|clip(share=0.8,group=128)|affine(bits=2,group=128)", 0.4},
      {"rope|k|svd(4,4,2,0,0,0,0,0)|v|affine(bits=4,group=64)", 0.8},
      {"rope|sharedbasis(k=0.125,v=0.1875)", 1},
      {"mean(part=k)|affine(bits=8,group=64)", 4e-5},
      {"mean(part=kv)|hadamard|levels(2,2,4)", 6e-5},
      {"affine(bits=4,group=32,k=channel,v=token)", 0.0065},
      {"hadamard|levels(2,2,4)", 6e-5},
      {"levels(1,4)", 0.004},
      {"planes(step=0.5,levels=3)", 0.05},
  };
  for (CodecCase c : recipes) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      c.dtype = dtype;
      cases.push_back(c);
    }
  }
  // Every preset, also one that came without a line above: the bound is the crudest there is.
  for (const Preset& preset : CodecPresets()) {
    absl::string_view pipeline = preset.pipeline;  // the suite says how long runs are
    if (absl::StartsWith(pipeline, "run(")) pipeline.remove_prefix(pipeline.find('|') + 1);
    const auto listed = [&](const CodecCase& c) { return c.pipeline == pipeline; };
    if (!preset.needs.empty() || std::any_of(cases.begin(), cases.end(), listed)) continue;
    cases.push_back({std::string(pipeline), 0.25});
  }
  for (const char* recipe : {"raw", "lossless"}) {
    cases.push_back({recipe, 0, DType::kF8E4M3});
    cases.push_back({recipe, 0, DType::kF8E5M2});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Recipes, CodecConformance, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           std::string name =
                               absl::StrCat(info.param.pipeline, "_", DTypeName(info.param.dtype));
                           for (char& c : name) {
                             if (!absl::ascii_isalnum(c)) c = '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace kvstow::testing
