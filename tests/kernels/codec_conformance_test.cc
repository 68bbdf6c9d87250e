// The codec conformance suite, on every recipe and every dtype.
#include "tests/conformance/codec_conformance.h"

#include "absl/strings/ascii.h"

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
  for (const Preset& preset : Presets()) {
    const auto listed = [&](const CodecCase& c) { return c.pipeline == preset.pipeline; };
    if (!preset.needs.empty() || std::any_of(cases.begin(), cases.end(), listed)) continue;
    cases.push_back({std::string(preset.pipeline), 0.25});
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
