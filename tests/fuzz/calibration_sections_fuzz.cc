// Calibration blobs with any sections, from anywhere: they parse or are refused, and what parses
// codes a page or refuses it; never a crash. The input is a blob (tests/golden is the seed corpus)
// whose digest is made right.
#include <cstdlib>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokens = 9;
constexpr const char* kRecipes[] = {"kvstow-cal(run=2,step=2)", "nuq(bits=3,outliers=0.01)",
                                    "pca(bits=4,run=2)",        "predict(bits=2,run=3)",
                                    "rotate(bits=4,group=8)",   "waterfill(bits=4)"};

// Codes a page with what was parsed: odd numbers in it must not crash a codec either.
void Use(std::span<const uint8_t> blob) {
  static const KvSpec spec = testing::CorrelatedSpec(3, 4, 2);  // the shape of the golden blobs
  static const auto* const raw =
      new std::vector<uint8_t>(testing::CorrelatedPage(spec, kTokens, 3));
  (void)ParseModelStats(blob, spec).ok();
  CalibrationStore store;
  if (!store.Add(blob).ok()) return;
  for (const char* text : kRecipes) {
    const auto codec = MakeCodec(*ParseRecipe(text), spec, store);
    if (!codec.ok()) continue;
    const auto page = (*codec)->Encode({.raw = *raw, .tokens = kTokens});
    if (!page.ok()) continue;
    std::vector<uint8_t> out(raw->size());
    (void)DecodePage(page->header, page->segments, out, store).ok();
  }
}

}  // namespace
}  // namespace kvstow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  (void)ParseCalibration({data, size}).ok();
  if (size < sizeof(Digest128::bytes)) return 0;
  std::string blob(AsString({data, size - sizeof(Digest128::bytes)}));
  const Digest128 digest = Xxh3_128(AsBytes(blob));
  blob.append(digest.bytes.begin(), digest.bytes.end());
  Use(AsBytes(blob));
  return 0;
}
