// Calibration blobs from anywhere: they parse or are refused, and what parses codes a page or
// refuses it; never a crash. The input is laid over a blob that fits, whose digest is made right:
// zeros leave it as it is; the first byte says how much is cut off its end.
#include <algorithm>
#include <cstdlib>

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

// Codes a page with what was parsed: odd numbers in it must not crash a codec either.
void Use(std::span<const uint8_t> blob) {
  static const std::vector<uint8_t>* const raw =
      new std::vector<uint8_t>(testing::CorrelatedPage(testing::CorrelatedSpec(), 8, 3));
  CalibrationStore store;
  if (!store.Add(blob).ok()) return;
  const auto codec =
      MakeCodec(*ParseRecipe("kvstow-cal(run=2,step=2)"), testing::CorrelatedSpec(), store);
  if (!codec.ok()) return;
  const auto page = (*codec)->Encode({.raw = *raw, .tokens = 8});
  if (!page.ok()) return;
  std::vector<uint8_t> out(raw->size());
  (void)DecodePage(page->header, page->segments, out, store).ok();
}

}  // namespace
}  // namespace kvstow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  static const std::string* const good =
      new std::string(testing::FitCorrelated(testing::CorrelatedSpec(), 2).value());
  if (size < 1) return 0;
  std::string blob = good->substr(0, good->size() - sizeof(Digest128::bytes));
  blob.resize(blob.size() - std::min<size_t>(data[0], blob.size()));
  for (size_t i = 0; i < std::min(blob.size(), size - 1); ++i)
    blob[i] = static_cast<char>(blob[i] ^ data[i + 1]);
  (void)ParseCalibration(AsBytes(blob)).ok();
  const Digest128 digest = Xxh3_128(AsBytes(blob));
  blob.append(digest.bytes.begin(), digest.bytes.end());
  Use(AsBytes(blob));
  return 0;
}
