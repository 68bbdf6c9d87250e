// Calibration blobs with any sections, from anywhere: they parse or are refused, and what parses
// codes a page or refuses it; never a crash. The input is a blob (tests/golden is the seed corpus)
// whose digest is made right.
#include <cstdlib>
#include <string>

#include "base/bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibrate.h"
#include "tests/fuzz/right_digests.h"
#include "tests/fuzz/use_calibration.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokens = 9;
constexpr const char* kRecipes[] = {"kvstow-cal(run=2,step=2)", "nuq(bits=3,outliers=0.01)",
                                    "pca(bits=4,run=2)",        "predict(bits=2,run=3)",
                                    "rotate(bits=4,group=8)",   "waterfill(bits=4)"};

}  // namespace
}  // namespace kvstow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  (void)ParseCalibration({data, size}).ok();
  if (size < sizeof(Digest128::bytes)) return 0;
  const std::string blob =
      testing::WithBlobDigest(std::string(AsString({data, size - sizeof(Digest128::bytes)})));
  static const KvSpec spec = testing::CorrelatedSpec(3, 4, 2);  // the shape of the golden blobs
  (void)ParseModelStats(AsBytes(blob), spec).ok();
  testing::UseCalibration(AsBytes(blob), spec, kTokens, kRecipes);
  return 0;
}
