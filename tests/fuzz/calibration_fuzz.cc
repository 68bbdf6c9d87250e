// Calibration blobs from anywhere: they parse or are refused, and what parses codes a page or
// refuses it; never a crash. The input is laid over a blob that fits, whose digest is made right:
// zeros leave it as it is; the first byte says how much is cut off its end.
#include <algorithm>
#include <cstdlib>

#include "base/bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibrate.h"
#include "tests/fuzz/right_digests.h"
#include "tests/fuzz/use_calibration.h"
#include "tests/kernels/correlated_pages.h"

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
  constexpr const char* kRecipes[] = {"kvstow-cal(run=2,step=2)"};
  const std::string whole = testing::WithBlobDigest(std::move(blob));
  testing::UseCalibration(AsBytes(whole), testing::CorrelatedSpec(), 8, kRecipes);
  return 0;
}
