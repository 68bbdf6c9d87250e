// Pages from anywhere: a header (without its digest) and bodies that nobody checked decode or are
// refused, whole, by layers and by tokens; never a crash. The input is a golden file (tests/golden
// is the seed corpus) whose header's digest is made right. The calibrations are those there.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "tests/fuzz/right_digests.h"

namespace kvstow {
namespace {

constexpr size_t kMaxPage = 1 << 20;  // keeps a run fast: a small input can name a large page

const CalibrationStore& Calibrations() {
  static const CalibrationStore* const store = [] {
    auto* made = new CalibrationStore;
    for (const auto& file : std::filesystem::directory_iterator(KVSTOW_GOLDEN)) {
      if (file.path().extension() != ".kvcal") continue;
      std::ifstream in(file.path(), std::ios::binary);
      const std::string blob((std::istreambuf_iterator<char>(in)), {});
      if (!made->Add(AsBytes(blob)).ok()) std::abort();
    }
    return made;
  }();
  return *store;
}

void Decode(const PageHeader& header, std::span<const uint8_t> rest) {
  const CalibrationStore& calibrations = Calibrations();
  std::vector<std::optional<SharedBytes>> bodies;
  for (const SegmentInfo& s : header.segments) {
    const size_t size = std::min<size_t>(s.bytes, rest.size());
    bodies.emplace_back(SharedBytes::CopyOf(rest.first(size)));
    rest = rest.subspan(size);
  }
  std::vector<uint8_t> out(PageBytes(header.Geometry(), header.tokens));
  (void)DecodePage(header, bodies, {}, out, calibrations).ok();
  out.resize(LayerBytes(header.Geometry(), header.tokens));
  (void)DecodePage(header, bodies, {.layers = {header.layers - 1, 1}}, out, calibrations).ok();
  bodies.resize(SegmentsForLevels(header, 1));
  (void)DecodePage(header, bodies, {.layers = {0, 1}}, out, calibrations).ok();
  out.resize(LayerBytes(header.Geometry(), 1));
  const TokenRange token{header.tokens / 2, 1};
  (void)DecodePage(header, bodies, {.layers = {0, 1}, .tokens = token}, out, calibrations).ok();
}

}  // namespace
}  // namespace kvstow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  ByteReader in({data, size});
  const std::string bytes = testing::GoldenHeader(in);
  const auto header = ParsePageHeader(AsBytes(bytes));
  if (!header.ok() || PageBytes(header->Geometry(), header->tokens) > kMaxPage) return 0;
  Decode(*header, in.GetBytes(in.remaining()));
  return 0;
}
