// A calibration: what the joint transform (joint_run_codec.h) knows of a model's KV, made once from
// sample text (calibration_fit.h) and named by its bytes. docs/FORMAT.md gives every byte of a
// blob.
//
// For every run of layers it holds the mean of a token's vector [K before RoPE of the run's layers,
// V of the same layers], an encode matrix E and a decode matrix D: coefficients are c = (x - mean)
// E, and x' = c D + mean. Coefficients are scaled so that an error of one unit costs the same
// everywhere: one step fits all of them. `sigma` is the spread of each, largest first.
//
// A page names the blob that coded it by CalibrationId. Whoever decodes looks it up in a
// CalibrationStore; a missing one is FAILED_PRECONDITION here and a miss in the service.
//
// Calibration: immutable. CalibrationStore: thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_H_
#define KVSTOW_KERNELS_CALIBRATION_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/page.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {

// The first 16 bytes of the SHA-256 of a blob.
using CalibrationId = std::array<uint8_t, 16>;

inline constexpr uint16_t kCalibrationFormatVersion = 1;
inline constexpr size_t kMaxCalibrationWidth = 1 << 16;  // values a token of one run

// What of a model's KV a calibration is for: a KvSpec without names, dtype and page size.
struct CalibrationShape {
  uint32_t layers = 0, kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  uint32_t layers_per_run = 0;  // the last run may be shorter
  RopeSpec rope;
  bool operator==(const CalibrationShape&) const = default;

  uint32_t runs() const { return (layers + layers_per_run - 1) / layers_per_run; }
  uint32_t LayersOfRun(uint32_t run) const;
  size_t WidthOfRun(uint32_t run) const;
};
CalibrationShape ShapeFor(const KvSpec& spec, uint32_t layers_per_run);

// One run as it is fitted and stored: matrices in fp16, each row times a scale.
struct CalibratedRunData {
  std::vector<float> mean;                             // [width]
  std::vector<float> sigma;                            // [rank]
  std::vector<float> encode_scales, decode_scales;     // [rank]
  std::vector<uint16_t> encode_halves, decode_halves;  // [rank, width]: E transposed, and D
};
struct CalibrationData {
  CalibrationShape shape;
  PlaneTables tables;
  std::vector<CalibratedRunData> runs;
};
std::string SerializeCalibration(const CalibrationData& data);

// One run, ready for products.
struct CalibratedRun {
  uint32_t first_layer = 0, layer_count = 0;
  std::vector<float> mean, sigma;
  PackedMatrix encode;  // [width, rank]
  PackedMatrix decode;  // [rank, width]
  size_t width() const { return mean.size(); }
  size_t rank() const { return sigma.size(); }
};

class Calibration {
 public:
  // DATA_LOSS says what is wrong with the bytes; FAILED_PRECONDITION for an unknown version. Never
  // allocates more than a small multiple of blob.size().
  static absl::StatusOr<std::shared_ptr<const Calibration>> Parse(std::span<const uint8_t> blob);

  const CalibrationId& id() const { return id_; }
  const CalibrationShape& shape() const { return shape_; }
  const PlaneTables& tables() const { return tables_; }
  std::span<const CalibratedRun> runs() const { return runs_; }

 private:
  Calibration() = default;

  CalibrationId id_{};
  CalibrationShape shape_;
  PlaneTables tables_;
  std::vector<CalibratedRun> runs_;
};

// The calibrations that a process has loaded.
class CalibrationStore {
 public:
  // The store of a process that has none.
  static const CalibrationStore& Empty();

  // Adding a blob twice is adding it once. Errors are Parse's.
  absl::StatusOr<std::shared_ptr<const Calibration>> Add(std::span<const uint8_t> blob);
  // Null when there is none of that name.
  std::shared_ptr<const Calibration> Find(const CalibrationId& id) const;
  // The one of this shape whose id in hexadecimal begins with `prefix` ("" = any).
  // FAILED_PRECONDITION when there is none, INVALID_ARGUMENT when there are several.
  absl::StatusOr<std::shared_ptr<const Calibration>> Choose(const CalibrationShape& shape,
                                                            absl::string_view prefix) const;

 private:
  mutable Mutex mutex_;
  std::map<CalibrationId, std::shared_ptr<const Calibration>> calibrations_
      KVSTOW_GUARDED_BY(mutex_);
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_H_
