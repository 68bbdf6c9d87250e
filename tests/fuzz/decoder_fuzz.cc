// One decoder on bodies from anywhere: they decode to finite values or are refused, whole, by
// layers and with levels dropped; never a crash. KVSTOW_FUZZ_RECIPES says whose bodies; a target is
// this file and a list of recipes.
//
// Input: which recipe, which shape and which dtype (a byte each), how much of each body is kept (a
// byte), then bytes that are laid over what the encoder wrote: zeros leave a page as it is. So the
// fuzzer begins deep within the decoder, and needs no corpus.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/presets.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/run_codec.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/pages.h"

namespace kvstow {
namespace {

struct Shape {
  uint32_t layers, heads, dim_k, dim_v, tokens;
  uint64_t first_position;
};
constexpr Shape kShapes[] = {{2, 1, 8, 8, 3, 640},   {3, 2, 16, 16, 12, 0}, {2, 1, 80, 96, 9, 2},
                             {1, 1, 192, 128, 2, 5}, {2, 1, 36, 0, 17, 1},  {1, 3, 7, 1, 1, 0}};
constexpr DType kDTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF8E4M3};

std::vector<std::string> RecipesToFuzz() {
  const absl::string_view listed = KVSTOW_FUZZ_RECIPES;
  if (listed != "presets") return absl::StrSplit(listed, '+');
  std::vector<std::string> all;
  for (const Preset& preset : CodecPresets()) {
    if (preset.needs.empty()) all.emplace_back(preset.name);
  }
  return all;
}

// A page that the recipe made, and all that decoding it needs.
struct Coded {
  EncodedPage page;
  std::vector<uint8_t> raw;
};

// Calibrations of the shape that recipes with one get.
const CalibrationStore& Calibrations() {
  static const CalibrationStore* const store = [] {
    auto* made = new CalibrationStore;
    const KvSpec spec = testing::CorrelatedSpec();
    const auto add = [&](const absl::StatusOr<std::string>& blob) {
      if (!blob.ok() || !made->Add(AsBytes(*blob)).ok()) std::abort();
    };
    add(testing::FitCorrelated(spec, 2));
    for (const std::string& text : RecipesToFuzz()) {
      const Recipe recipe = ParseRecipe(text).value();
      if (!CalibrationNeeds(recipe)->has_value() || MakeCodec(recipe, spec, *made).ok()) continue;
      add(testing::FitRecipe(text, spec, testing::AlikeStats(spec)));
    }
    return made;
  }();
  return *store;
}

absl::StatusOr<Coded> Encode(const std::string& text, const Shape& shape, DType dtype) {
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(text));
  KVSTOW_ASSIGN_OR_RETURN(const auto need, CalibrationNeeds(recipe));
  KvSpec spec = testing::CorrelatedSpec();
  Coded coded;
  if (need.has_value()) {
    coded.raw = testing::CorrelatedPage(spec, shape.tokens, 3, shape.first_position);
  } else {
    spec = testing::SpecOf(dtype, shape.layers, shape.heads, shape.dim_k, shape.dim_v, 64);
    coded.raw = testing::GaussianPage(spec, shape.tokens);
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto codec, MakeCodec(recipe, spec, Calibrations()));
  KVSTOW_ASSIGN_OR_RETURN(coded.page, codec->Encode({.raw = coded.raw,
                                                     .tokens = shape.tokens,
                                                     .first_position = shape.first_position}));
  return coded;
}

// Null where the recipe does not take the dtype.
const Coded* Page(size_t recipe, size_t shape, size_t dtype) {
  static const std::vector<std::string>* const recipes =
      new std::vector<std::string>(RecipesToFuzz());
  static auto* const pages = new std::map<std::tuple<size_t, size_t, size_t>, Coded>;
  recipe %= recipes->size(), shape %= std::size(kShapes), dtype %= std::size(kDTypes);
  const auto [at, is_new] = pages->try_emplace({recipe, shape, dtype});
  if (is_new) {
    auto coded = Encode((*recipes)[recipe], kShapes[shape], kDTypes[dtype]);
    if (coded.ok()) {
      at->second = *std::move(coded);
    } else if (!IsFloat8(kDTypes[dtype])) {
      std::fprintf(stderr, "%s: %s\n", (*recipes)[recipe].c_str(),
                   coded.status().ToString().c_str());
      std::abort();
    }
  }
  return at->second.raw.empty() ? nullptr : &at->second;
}

void Check(const PageHeader& header, std::span<const std::optional<SharedBytes>> bodies,
           const PageRange& wanted) {
  const uint32_t layers = wanted.layers.count == 0 ? header.layers : wanted.layers.count;
  const uint32_t tokens = wanted.tokens.count == 0 ? header.tokens : wanted.tokens.count;
  std::vector<uint8_t> out(layers * LayerBytes(header.Geometry(), tokens));
  const absl::Status status = DecodePage(header, bodies, wanted, out, Calibrations());
  // FAILED_PRECONDITION: a body that says that another version wrote it.
  if (!status.ok() && !absl::IsDataLoss(status) && !absl::IsFailedPrecondition(status)) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
  if (!status.ok() || header.exact) return;
  std::vector<float> values(out.size() / DTypeBytes(header.dtype));
  if (!LoadFloats(header.dtype, out.data(), values.size(), values.data())) {
    std::fprintf(stderr, "%s decoded to NaN or Inf\n", header.pipeline.c_str());
    std::abort();
  }
}

}  // namespace
}  // namespace kvstow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  if (size < 4) return 0;
  const Coded* const coded = Page(data[0], data[1], data[2]);
  if (coded == nullptr) return 0;
  const size_t kept = data[3];  // of 255
  std::span<const uint8_t> over(data + 4, size - 4);
  PageHeader header = coded->page.header;
  std::vector<std::optional<SharedBytes>> bodies;
  for (size_t i = 0; i < header.segments.size(); ++i) {
    const std::span<const uint8_t> whole = coded->page.segments[i].span();
    std::vector<uint8_t> body(whole.begin(), whole.end());
    body.resize(body.size() - body.size() * kept / 255);
    for (size_t b = 0; b < std::min(body.size(), over.size()); ++b) body[b] ^= over[b];
    over = over.subspan(std::min(body.size(), over.size()));
    header.segments[i].bytes = static_cast<uint32_t>(body.size());
    bodies.emplace_back(SharedBytes::Take(std::move(body)));
  }
  Check(header, bodies, {});
  Check(header, bodies, {.layers = {header.layers - 1, 1}});
  Check(header, bodies, {.layers = {0, 1}, .tokens = {header.tokens / 2, 1}});
  bodies.resize(SegmentsForLevels(header, 1));
  Check(header, bodies, {});
  return 0;
}
