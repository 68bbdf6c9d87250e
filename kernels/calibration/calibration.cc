#include "kernels/calibration/calibration.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/page/encoded_page.h"

namespace kvstow {
namespace {

constexpr absl::string_view kMagic = "KVSTOWCA";
constexpr size_t kDigestBytes = sizeof(Digest128::bytes);
constexpr size_t kMaxSections = 16;
constexpr uint8_t kHasOtherRope = 1;  // in the last byte before the numbers of the RoPE

// `flag` is the byte behind the others.
void PutRope(const RopeSpec& rope, uint8_t flag, ByteWriter& out) {
  out.Put(rope.rotary_dims);
  out.Put(rope.original_context);
  out.Put(static_cast<uint8_t>(rope.layout));
  out.Put(static_cast<uint8_t>(rope.scaling));
  out.Put(static_cast<uint8_t>(rope.k_after_rope));
  out.Put(flag);
  for (const double x : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor}) {
    out.Put(x);
  }
}

void PutShape(const CalibrationShape& shape, ByteWriter& out) {
  for (const uint32_t n :
       {shape.layers, shape.kv_heads, shape.head_dim_k, shape.head_dim_v, shape.layers_per_run}) {
    out.Put(n);
  }
  const auto others = static_cast<uint32_t>(shape.other_rope.layers.size());
  PutRope(shape.rope, others > 0 ? kHasOtherRope : 0, out);
  if (others == 0) return;
  PutRope(shape.other_rope.rope, 0, out);
  out.Put(others);
  for (const uint32_t layer : shape.other_rope.layers) out.Put(static_cast<uint16_t>(layer));
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("calibration blob: ", what));
}

// Returns false for a flag that is out of range.
bool ReadRope(ByteReader& in, uint8_t most, RopeSpec& rope, uint8_t& flag) {
  rope.rotary_dims = in.Get<uint32_t>();
  rope.original_context = in.Get<uint32_t>();
  rope.layout = static_cast<RopeSpec::Layout>(in.Get<uint8_t>());
  rope.scaling = static_cast<RopeSpec::Scaling>(in.Get<uint8_t>());
  const auto after = in.Get<uint8_t>();
  flag = in.Get<uint8_t>();
  rope.k_after_rope = after != 0;
  for (double* x : {&rope.theta, &rope.factor, &rope.low_freq_factor, &rope.high_freq_factor}) {
    *x = in.Get<double>();
  }
  return after <= 1 && flag <= most;
}

// Returns false for flags that are out of range.
bool ReadRopes(ByteReader& in, CalibrationShape& shape) {
  uint8_t flag = 0, none = 0;
  if (!ReadRope(in, kHasOtherRope, shape.rope, flag)) return false;
  if (flag == 0) return true;
  const bool read = ReadRope(in, 0, shape.other_rope.rope, none);
  const auto others = in.Get<uint32_t>();
  if (!read || others == 0 || others > kMaxLayers) return false;
  for (uint32_t i = 0; i < others; ++i) shape.other_rope.layers.push_back(in.Get<uint16_t>());
  return true;
}

absl::StatusOr<CalibrationShape> ReadShape(ByteReader& in) {
  CalibrationShape shape;
  for (uint32_t* n : {&shape.layers, &shape.kv_heads, &shape.head_dim_k, &shape.head_dim_v,
                      &shape.layers_per_run}) {
    *n = in.Get<uint32_t>();
  }
  const bool flags = ReadRopes(in, shape);
  if (!in.ok()) return Damaged("it ends within its shape");
  const absl::Status valid = Validate(KvSpec{.layers = shape.layers,
                                             .kv_heads = shape.kv_heads,
                                             .head_dim_k = shape.head_dim_k,
                                             .head_dim_v = shape.head_dim_v,
                                             .page_tokens = 1,
                                             .rope = shape.rope,
                                             .other_rope = shape.other_rope});
  if (!valid.ok()) return Damaged(valid.message());
  if (!flags) return Damaged("a flag of its shape is out of range");
  if (shape.layers_per_run < 1 || shape.layers_per_run > shape.layers ||
      shape.WidthOfRun(0) > kMaxCalibrationWidth) {
    return Damaged(absl::StrCat("runs of ", shape.layers_per_run, " layers"));
  }
  return shape;
}

// The encode matrix lies in the blob by components, which are its columns in memory.
bool ReadEncode(ByteReader& in, size_t rank, size_t width, PackedMatrix& encode) {
  std::vector<float> scales;
  encode = PackedMatrix(width, rank);
  return ReadFloats(in, rank, scales, 0) &&
         ReadRows(in, scales, width,
                  [&](size_t i, std::span<const float> row) { encode.SetColumn(i, row); });
}

bool ReadDecode(ByteReader& in, size_t rank, size_t width, PackedMatrix& decode) {
  std::vector<float> scales;
  decode = PackedMatrix(rank, width);
  return ReadFloats(in, rank, scales, 0) &&
         ReadRows(in, scales, width,
                  [&](size_t i, std::span<const float> row) { decode.SetRow(i, row); });
}

absl::StatusOr<CalibratedRun> ReadRun(const CalibrationShape& shape, uint32_t index,
                                      ByteReader& in) {
  CalibratedRun run;
  run.first_layer = index * shape.layers_per_run;
  run.layer_count = shape.LayersOfRun(index);
  const size_t width = shape.WidthOfRun(index), rank = in.Get<uint32_t>();
  const auto damaged = [&](absl::string_view what) {
    return Damaged(absl::StrCat("run ", index, ": ", what));
  };
  if (!in.ok() || rank < 1 || rank > width) return damaged("its rank is out of range");
  const uint64_t bytes = 4 * width + 3 * 4 * rank + 2 * 2 * uint64_t{rank} * width;
  if (in.remaining() < bytes) return damaged("it is cut off");
  if (!ReadFloats(in, width, run.mean)) return damaged("a mean is not finite");
  if (!ReadFloats(in, rank, run.sigma, std::numeric_limits<float>::min())) {
    return damaged("a sigma is not positive");
  }
  if (!ReadEncode(in, rank, width, run.encode) || !ReadDecode(in, rank, width, run.decode)) {
    return damaged("a matrix has a value that is not finite");
  }
  return run;
}

void PutHead(uint16_t version, const CalibrationShape& shape, ByteWriter& out) {
  out.PutBytes(AsBytes(kMagic));
  out.Put(version);
  PutShape(shape, out);
}

void PutSectionHead(absl::string_view name, uint64_t size, ByteWriter& out) {
  out.PutString16(name);
  out.Put(size);
}

void PutSection(const CalibrationSection& section, ByteWriter& out) {
  PutSectionHead(section.name, section.body.size(), out);
  out.PutBytes(AsBytes(section.body));
}

absl::StatusOr<FitNote> ReadFitNote(std::span<const uint8_t> body) {
  ByteReader in(body);
  FitNote note;
  const auto space = in.GetBytes(note.space.size());
  std::copy(space.begin(), space.end(), note.space.begin());
  note.number = in.Get<uint64_t>();
  note.recipe = std::string(in.GetString16());
  if (!in.ok() || in.remaining() != 0) return absl::DataLossError("its lengths are wrong");
  return note;
}

// Puts the digest of everything before.
std::string Sealed(std::string out) {
  const Digest128 digest = Xxh3_128(AsBytes(out));
  out.append(digest.bytes.begin(), digest.bytes.end());
  return out;
}

void PutRun(const CalibratedRunData& run, ByteWriter& out) {
  out.Put(static_cast<uint32_t>(run.sigma.size()));
  PutFloats(run.mean, out);
  PutFloats(run.sigma, out);
  PutFloats(run.encode_scales, out);
  PutHalves(run.encode_halves, out);
  PutFloats(run.decode_scales, out);
  PutHalves(run.decode_halves, out);
}

// Where a blob begins: what stands before its sections, or before the content of section `joint`.
struct BlobHead {
  uint16_t version = 0;
  CalibrationShape shape;
  ByteReader rest;  // without the digest
};

absl::StatusOr<BlobHead> ReadBlobHead(std::span<const uint8_t> blob) {
  ByteReader in(blob.first(blob.size() - std::min(blob.size(), kDigestBytes)));
  const bool begins = AsString(in.GetBytes(kMagic.size())) == kMagic;
  const auto version = in.Get<uint16_t>();
  if (!begins || version < kJointCalibrationVersion || version > kSectionedCalibrationVersion) {
    return absl::InvalidArgumentError("a section goes to a calibration blob of version 1 or 2");
  }
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationShape shape, ReadShape(in));
  return BlobHead{version, shape, in};
}

// Bytes of the blob, without its digest, from where a section begins, and from where it ends.
struct SectionPlace {
  size_t left = 0, left_behind = 0;
};

// `in` stands behind the number of sections.
std::optional<SectionPlace> FindSection(ByteReader in, uint32_t sections, absl::string_view name) {
  for (uint32_t i = 0; i < sections && in.ok(); ++i) {
    const size_t left = in.remaining();
    const bool found = in.GetString16() == name;
    in.GetBytes(in.Get<uint64_t>());
    if (found && in.ok()) return SectionPlace{left, in.remaining()};
  }
  return std::nullopt;
}

}  // namespace

uint32_t CalibrationShape::LayersOfRun(uint32_t run) const {
  return std::min(layers_per_run, layers - run * layers_per_run);
}

size_t CalibrationShape::WidthOfRun(uint32_t run) const {
  return size_t{LayersOfRun(run)} * kv_heads * (head_dim_k + head_dim_v);
}

CalibrationShape ShapeFor(const KvSpec& spec, uint32_t layers_per_run) {
  return {spec.layers,
          spec.kv_heads,
          spec.head_dim_k,
          spec.head_dim_v,
          std::min(layers_per_run, spec.layers),
          spec.rope,
          spec.other_rope};
}

std::string SerializeCalibration(const CalibrationData& data) {
  ByteWriter head, weights;
  PutHead(kJointCalibrationVersion, data.shape, head);
  head.PutBytes(AsBytes(SerializePlaneTables(data.tables)));
  const bool known = std::all_of(data.runs.begin(), data.runs.end(),
                                 [](const auto& run) { return !run.importance.weights.empty(); });
  size_t halves = 0;
  for (const CalibratedRunData& run : data.runs) {
    halves += run.encode_halves.size() + run.decode_halves.size();
    if (known) PutFloats(run.importance.weights, weights);
  }
  // Tables may be large: room for all of them is made once.
  constexpr size_t kBesidesMatrices = 64 << 10;  // about, of a run
  std::string out;
  out.reserve(head.size() + 2 * halves + kBesidesMatrices * data.runs.size() + weights.size());
  out.append(head.bytes());
  for (const CalibratedRunData& run : data.runs) {
    ByteWriter one;
    PutRun(run, one);
    out.append(one.bytes());
  }
  return Sealed(std::move(out.append(weights.bytes())));
}

std::string SerializeCalibration(const CalibrationShape& shape,
                                 std::span<const CalibrationSection> sections) {
  ByteWriter out;
  PutHead(kSectionedCalibrationVersion, shape, out);
  out.Put(static_cast<uint32_t>(sections.size()));
  for (const CalibrationSection& section : sections) PutSection(section, out);
  return Sealed(std::move(out).Take());
}

absl::StatusOr<std::string> WithSection(std::span<const uint8_t> blob,
                                        const CalibrationSection& section) {
  KVSTOW_ASSIGN_OR_RETURN(const BlobHead begin, ReadBlobHead(blob));
  ByteReader in = begin.rest;
  ByteWriter head, last;
  PutHead(kSectionedCalibrationVersion, begin.shape, head);
  PutSection(section, last);
  if (begin.version == kSectionedCalibrationVersion) {
    const auto sections = in.Get<uint32_t>();
    if (FindSection(in, sections, section.name).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the calibration blob has section '", section.name, "' already"));
    }
    head.Put(sections + 1);
  } else {
    head.Put(uint32_t{2});
    PutSectionHead(kJointSection, in.remaining(), head);
  }
  const absl::string_view before = AsString(in.GetBytes(in.remaining()));
  std::string out;
  out.reserve(head.size() + before.size() + last.size() + kDigestBytes);
  out.append(head.bytes()).append(before.data(), before.size()).append(last.bytes());
  return Sealed(std::move(out));
}

absl::StatusOr<std::string> WithOtherSection(std::span<const uint8_t> blob,
                                             const CalibrationSection& section) {
  KVSTOW_ASSIGN_OR_RETURN(const BlobHead begin, ReadBlobHead(blob));
  ByteReader in = begin.rest;
  std::optional<SectionPlace> place;
  if (begin.version == kSectionedCalibrationVersion) {
    const auto sections = in.Get<uint32_t>();
    place = FindSection(in, sections, section.name);
  }
  if (!place.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the calibration blob has no section '", section.name, "'"));
  }
  ByteWriter other;
  PutSection(section, other);
  const absl::string_view bytes = AsString(blob.first(blob.size() - kDigestBytes));
  return Sealed(absl::StrCat(bytes.substr(0, bytes.size() - place->left), other.bytes(),
                             bytes.substr(bytes.size() - place->left_behind)));
}

absl::StatusOr<std::string> WithFitNote(std::span<const uint8_t> blob, const FitNote& note) {
  ByteWriter body;
  body.PutBytes(note.space);
  body.Put(note.number);
  body.PutString16(note.recipe);
  return WithSection(blob, {std::string(kFittedSection), std::move(body).Take()});
}

absl::StatusOr<std::shared_ptr<const Calibration>> Calibration::Parse(std::span<const uint8_t> blob,
                                                                      FindSectionParser find) {
  ByteReader in(blob.first(blob.size() - std::min(blob.size(), kDigestBytes)));
  if (AsString(in.GetBytes(kMagic.size())) != kMagic) return Damaged("it does not begin as one");
  const auto version = in.Get<uint16_t>();
  if (in.ok() && version != kJointCalibrationVersion && version != kSectionedCalibrationVersion) {
    return absl::FailedPreconditionError(absl::StrCat("calibration blob of version ", version,
                                                      "; this build reads versions 1 and 2"));
  }
  const Digest128 digest = Xxh3_128(blob.first(blob.size() - kDigestBytes));
  if (!std::equal(digest.bytes.begin(), digest.bytes.end(), blob.end() - kDigestBytes)) {
    return Damaged("its digest does not match");
  }
  std::shared_ptr<Calibration> out(new Calibration);
  KVSTOW_ASSIGN_OR_RETURN(out->shape_, ReadShape(in));
  KVSTOW_RETURN_IF_ERROR(version == kJointCalibrationVersion ? out->ReadJoint(in)
                                                             : out->ReadSections(in, find));
  if (in.remaining() != 0) return Damaged("bytes follow its end");
  const Sha256Digest name = Sha256(blob);
  std::copy_n(name.begin(), out->id_.size(), out->id_.begin());
  return out;
}

absl::Status Calibration::ReadJoint(ByteReader& in) {
  const auto tables = ParsePlaneTables(in.GetBytes(kPlaneTablesBytes));
  if (!tables.ok()) return Damaged(tables.status().message());
  plane_tables_ = *tables;
  for (uint32_t i = 0; i < shape_.runs(); ++i) {
    KVSTOW_ASSIGN_OR_RETURN(CalibratedRun run, ReadRun(shape_, i, in));
    runs_.push_back(std::move(run));
  }
  if (in.remaining() == 0) return absl::OkStatus();
  for (CalibratedRun& run : runs_) {
    if (!ReadFloats(in, ImportanceWeights(run.rank()), run.importance.weights)) {
      return Damaged("its importance of tokens is cut off or not finite");
    }
  }
  return absl::OkStatus();
}

absl::Status Calibration::ReadSections(ByteReader& in, FindSectionParser find) {
  const auto count = in.Get<uint32_t>();
  if (count < 1 || count > kMaxSections) return Damaged(absl::StrCat(count, " sections"));
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name(in.GetString16());
    const auto size = in.Get<uint64_t>();
    const auto body = in.GetBytes(size);
    if (!in.ok()) return Damaged(absl::StrCat("it ends within section ", i));
    if (Has(name) || (name == kFittedSection && fit_note_.has_value())) {
      return Damaged(absl::StrCat("section '", name, "' stands twice"));
    }
    KVSTOW_RETURN_IF_ERROR(ReadSection(name, body, find));
  }
  return absl::OkStatus();
}

absl::Status Calibration::ReadSection(const std::string& name, std::span<const uint8_t> body,
                                      FindSectionParser find) {
  if (name == kJointSection) {
    ByteReader in(body);
    KVSTOW_RETURN_IF_ERROR(ReadJoint(in));
    return in.remaining() == 0 ? absl::OkStatus() : Damaged("bytes follow section 'joint'");
  }
  absl::Status read;
  if (name == kFittedSection) {
    absl::StatusOr<FitNote> note = ReadFitNote(body);
    read = note.status();
    if (note.ok()) fit_note_ = *std::move(note);
  } else {
    const SectionParser parse = find(name);
    if (parse == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "calibration blob: section '", absl::CHexEscape(name), "', which this build lacks"));
    }
    auto tables = parse(shape_, body);
    read = tables.status();
    if (tables.ok()) tables_[name] = *std::move(tables);
  }
  if (read.ok()) return read;
  return Damaged(absl::StrCat("section '", name, "': ", read.message()));
}

bool Calibration::Has(absl::string_view section) const {
  return section == kJointSection ? !runs_.empty() : Tables(section) != nullptr;
}

const CalibratedTables* Calibration::Tables(absl::string_view section) const {
  const auto found = tables_.find(section);
  return found == tables_.end() ? nullptr : found->second.get();
}

absl::StatusOr<CalibrationNeed> ReadCalibrationNeed(const OpArguments& arguments) {
  CalibrationNeed need{.section = arguments.op().name};
  KVSTOW_ASSIGN_OR_RETURN(need.layers_per_run, arguments.Number("run", 1, 1, kMaxLayers));
  const absl::string_view blob = arguments.Text("blob", "any");
  if (blob == "any") return need;
  if (blob.size() > 2 * sizeof(CalibrationId) ||
      !std::all_of(blob.begin(), blob.end(), absl::ascii_isxdigit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("op '", need.section, "': blob='", blob,
                     "' must be 'any' or leading hexadecimal digits of an id"));
  }
  need.blob = std::string(blob);
  return need;
}

}  // namespace kvstow
