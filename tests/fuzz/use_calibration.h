// Codes a page with a calibration from anywhere: odd numbers in it must not crash a codec.
#ifndef KVSTOW_TESTS_FUZZ_USE_CALIBRATION_H_
#define KVSTOW_TESTS_FUZZ_USE_CALIBRATION_H_

#include <span>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {

// Takes the recipes that the calibration has something for.
inline void UseCalibration(std::span<const uint8_t> blob, const KvSpec& spec, uint32_t tokens,
                           std::span<const char* const> recipes) {
  CalibrationStore store;
  if (!store.Add(blob).ok()) return;
  const std::vector<uint8_t> raw = CorrelatedPage(spec, tokens, 3);
  for (const char* text : recipes) {
    const auto codec = MakeCodec(*ParseRecipe(text), spec, store);
    if (!codec.ok()) continue;
    const auto page = (*codec)->Encode({.raw = raw, .tokens = tokens});
    if (!page.ok()) continue;
    std::vector<uint8_t> out(raw.size());
    (void)DecodePage(page->header, page->segments, out, store).ok();
  }
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_FUZZ_USE_CALIBRATION_H_
