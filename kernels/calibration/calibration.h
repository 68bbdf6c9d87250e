// A calibration: what a codec knows of a model's KV before it sees a page. A fit makes it once from
// sample text (calibration_fit.h), and its bytes name it. docs/FORMAT.md gives every byte of a
// blob.
//
// A blob is for one CalibrationShape and holds sections. Each section has the tables of one method
// under the name of its op (codec/calibrate.h). A blob of version 1 holds only the content of
// section `joint`, the tables of the joint transform (joint_run_codec.h). Version 2 holds any
// sections.
//
// Section `fitted` has no tables. It says that the blob is for one space alone (FitNote): a server
// made it by itself, from the pages of that space, or keeps what a worker sent for the space. A
// recipe finds such a blob only by its whole id.
//
// Section `joint` holds for every run of layers the mean of a token's vector [K before RoPE of the
// run's layers, V of the same layers], an encode matrix E and a decode matrix D. Coefficients are c
// = (x - mean) E, and x' = c D + mean. Coefficients are scaled so that an error of one unit costs
// the same everywhere: one step fits all of them. `sigma` is the spread of each, largest first.
//
// A page names the blob that coded it by CalibrationId. A decoder looks it up in a CalibrationStore
// (calibration_store.h). A missing one is FAILED_PRECONDITION here and a miss in the service.
//
// Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_CALIBRATION_H_
#define KVSTOW_KERNELS_CALIBRATION_CALIBRATION_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/page/page.h"
#include "kernels/recipe/op_arguments.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {

// The first 16 bytes of the SHA-256 of a blob.
using CalibrationId = std::array<uint8_t, 16>;

inline constexpr uint16_t kJointCalibrationVersion = 1;
inline constexpr uint16_t kSectionedCalibrationVersion = 2;
inline constexpr absl::string_view kJointSection = "joint";
inline constexpr absl::string_view kFittedSection = "fitted";
inline constexpr size_t kMaxCalibrationWidth = 1 << 16;  // values a token of one run

// The part of a model's KV that a calibration is for: a KvSpec without names, dtype and page size.
struct CalibrationShape {
  uint32_t layers = 0, kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  uint32_t layers_per_run = 0;  // the last run may be shorter
  RopeSpec rope;
  OtherRope other_rope;
  bool operator==(const CalibrationShape&) const = default;

  uint32_t runs() const { return (layers + layers_per_run - 1) / layers_per_run; }
  uint32_t LayersOfRun(uint32_t run) const;
  size_t WidthOfRun(uint32_t run) const;
};
CalibrationShape ShapeFor(const KvSpec& spec, uint32_t layers_per_run);

// One run as it is fitted and stored. Matrices are in fp16, and each row has a scale.
struct CalibratedRunData {
  std::vector<float> mean;                             // [width]
  std::vector<float> sigma;                            // [rank]
  std::vector<float> encode_scales, decode_scales;     // [rank]
  std::vector<uint16_t> encode_halves, decode_halves;  // [rank, width]: E transposed, and D
  ImportanceModel importance;                          // for all runs or for none
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
  ImportanceModel importance;
  size_t width() const { return mean.size(); }
  size_t rank() const { return sigma.size(); }
};

// Tables of one method, as its own file reads them out of a section. Immutable.
class CalibratedTables {
 public:
  virtual ~CalibratedTables() = default;
};

// Reads a section's body. Fails with DATA_LOSS, which says what is wrong with it. Allocates no more
// than a small multiple of its size.
using SectionParser = absl::StatusOr<std::shared_ptr<const CalibratedTables>> (*)(
    const CalibrationShape& shape, std::span<const uint8_t> body);
// Returns null when no method has a section of that name.
using FindSectionParser = SectionParser (*)(absl::string_view section);

struct CalibrationSection {
  std::string name, body;
};

// What a server says of a blob that is for one space.
using FitName = std::array<uint8_t, 16>;
struct FitNote {
  FitName space{};      // a blob of another space is not used
  uint64_t number = 0;  // of the space's fits, from 1
  std::string recipe;   // that the space codes cold pages with, without `blob`; "" = none
  bool operator==(const FitNote&) const = default;
};
// Returns the blob, now of version 2, with one more section behind the others. Fails with
// INVALID_ARGUMENT for bytes that do not begin as a blob, and where it has that section.
absl::StatusOr<std::string> WithSection(std::span<const uint8_t> blob,
                                        const CalibrationSection& section);
// Returns the blob with this section in the place of its section of the same name. Fails with
// INVALID_ARGUMENT for bytes that do not begin as a blob, and where it has no such section.
absl::StatusOr<std::string> WithOtherSection(std::span<const uint8_t> blob,
                                             const CalibrationSection& section);
// Returns the blob with the note. Fails with INVALID_ARGUMENT for bytes that do not begin as a
// blob, and for a blob that has a note.
absl::StatusOr<std::string> WithFitNote(std::span<const uint8_t> blob, const FitNote& note);
// Returns a blob of version 2.
std::string SerializeCalibration(const CalibrationShape& shape,
                                 std::span<const CalibrationSection> sections);

class Calibration {
 public:
  // Fails with DATA_LOSS, which says what is wrong with the bytes, and with FAILED_PRECONDITION for
  // an unknown version or section. Never allocates more than a small multiple of blob.size().
  // ParseCalibration (codec/calibrate.h) knows the parsers of all sections.
  static absl::StatusOr<std::shared_ptr<const Calibration>> Parse(std::span<const uint8_t> blob,
                                                                  FindSectionParser find);

  const CalibrationId& id() const { return id_; }
  const CalibrationShape& shape() const { return shape_; }
  const PlaneTables& plane_tables() const { return plane_tables_; }
  std::span<const CalibratedRun> runs() const { return runs_; }  // runs of section `joint`
  bool Has(absl::string_view section) const;
  // Nothing for a blob that people made.
  const std::optional<FitNote>& fit_note() const { return fit_note_; }
  // Returns null when there is no such section, and for `joint` and `fitted`.
  const CalibratedTables* Tables(absl::string_view section) const;

 private:
  Calibration() = default;
  absl::Status ReadJoint(ByteReader& in);
  absl::Status ReadSections(ByteReader& in, FindSectionParser find);
  absl::Status ReadSection(const std::string& name, std::span<const uint8_t> body,
                           FindSectionParser find);

  CalibrationId id_{};
  CalibrationShape shape_;
  PlaneTables plane_tables_;
  std::vector<CalibratedRun> runs_;
  std::map<std::string, std::shared_ptr<const CalibratedTables>, std::less<>> tables_;
  std::optional<FitNote> fit_note_;
};

// The calibration that a recipe needs.
struct CalibrationNeed {
  std::string section;  // name of its op, or `queries`
  uint32_t layers_per_run = 1;
  std::string blob;  // leading hexadecimal digits of its id; "" = any
};
// Reads arguments `run` and `blob` of an op. INVALID_ARGUMENT names the one that is out of range.
absl::StatusOr<CalibrationNeed> ReadCalibrationNeed(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_CALIBRATION_H_
