// Calibrated pages to measure: of SmolLM2-135M's shape, with coefficients that are Gaussian and
// have the spreads of its own calibrations, so that the entropy coder has as much to do as on text.
// Coefficient i is value i of a vector, so K and V themselves are no text's.
#ifndef KVSTOW_TESTS_BENCH_CALIBRATED_PAGE_H_
#define KVSTOW_TESTS_BENCH_CALIBRATED_PAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/page/page.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {

// What a calibration has beside its transform. Each has what the one before has.
enum class Knows {
  kTransform,
  kQueries,  // step classes, and mean queries of two heads a KV head in every third layer
  kTokens,   // a vocabulary of 49,152 tokens with 256 features
};

// Runs of 1 or 10 layers.
KvSpec CalibratedSpec();
std::string CalibrationOf(uint32_t layers_per_run, Knows knows);
// Its tokens are those of the vocabulary where `knows` says so.
std::vector<uint8_t> CalibratedPage(uint32_t layers_per_run, Knows knows, uint64_t first_position);

}  // namespace kvstow

#endif  // KVSTOW_TESTS_BENCH_CALIBRATED_PAGE_H_
