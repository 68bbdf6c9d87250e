#include "service/spaces/space_record.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/recipe.h"
#include "service/spaces/space_recipe.h"

namespace kvstow {
namespace {

// Versions of the identity: 2 where all layers have one RoPE, 3 where some have another.
constexpr uint16_t kUsualIdentity = 2, kRopesIdentity = 3;
constexpr absl::string_view kFingerprintTags[] = {"", "kvstow space v1", "kvstow space v2",
                                                  "kvstow space v3"};

// The versions of the record of a space.
struct RecordVersion {
  uint16_t identity;
  bool tenant;  // the record names one
  bool era;     // and one of these
};
constexpr RecordVersion kRecordVersions[] = {{},
                                             {1, false, false},
                                             {2, false, false},
                                             {2, true, false},
                                             {3, false, false},
                                             {3, true, false},
                                             {2, false, true},
                                             {2, true, true},
                                             {3, false, true},
                                             {3, true, true}};
constexpr uint16_t kLastRecord = std::size(kRecordVersions) - 1;
constexpr uint16_t kMoreWithEra = 4;                // is the version
constexpr size_t kEraBytes = 2 * sizeof(uint64_t);  // at the end

uint16_t IdentityVersion(const KvSpec& spec) {
  return spec.other_rope.layers.empty() ? kUsualIdentity : kRopesIdentity;
}

uint16_t VersionOfRecord(const Space& space, const SavedEra& era) {
  uint16_t version = IdentityVersion(space.spec) == kUsualIdentity ? 2 : 4;
  if (!space.tenant.empty()) ++version;
  if (era.generation > 0) version += kMoreWithEra;
  return version;
}

// A field is a 16-bit length and its bytes; numbers are little-endian.
struct FieldWriter {
  ByteWriter out;
  void operator()(std::string& text) { out.PutString16(text); }
  template <typename T>
  void operator()(std::vector<T>& values) {
    out.Put(static_cast<uint16_t>(values.size() * sizeof(T)));
    out.PutBytes({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)});
  }
  template <typename T>
  void operator()(T& value) {
    out.Put(static_cast<uint16_t>(sizeof(T)));
    out.PutBytes({reinterpret_cast<const uint8_t*>(&value), sizeof(T)});
  }
};
struct FieldReader {
  ByteReader in;
  bool ok = true;
  void operator()(std::string& text) { text = std::string(in.GetString16()); }
  template <typename T>
  void operator()(std::vector<T>& values) {
    const absl::string_view bytes = in.GetString16();
    ok = ok && bytes.size() % sizeof(T) == 0;
    if (!ok) return;
    values.resize(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  template <typename T>
  void operator()(T& value) {
    const absl::string_view bytes = in.GetString16();
    if (bytes.size() != sizeof(T)) {
      ok = false;
      return;
    }
    std::memcpy(&value, bytes.data(), sizeof(T));
  }
};

// The fields that version 2 added to version 1.
template <typename Archive>
void FieldsOfVersion2(Archive& archive, KvSpec& spec) {
  RopeDetails& rope = spec.rope_details;
  archive(spec.weight_quantization);
  archive(spec.adapter);
  archive(spec.kv_scales);
  archive(spec.sliding_window);
  archive(spec.layer_layout);
  archive(rope.attention_factor);
  archive(rope.mscale);
  archive(rope.mscale_all_dim);
  archive(rope.short_factors);
  archive(rope.long_factors);
  archive(rope.mrope_sections);
}

template <typename Archive>
void RopeFields(Archive& archive, RopeSpec& rope) {
  auto layout = static_cast<uint8_t>(rope.layout);
  auto scaling = static_cast<uint8_t>(rope.scaling);
  auto after = static_cast<uint8_t>(rope.k_after_rope);
  archive(layout);
  archive(scaling);
  archive(after);
  archive(rope.rotary_dims);
  archive(rope.theta);
  archive(rope.factor);
  archive(rope.low_freq_factor);
  archive(rope.high_freq_factor);
  archive(rope.original_context);
  rope.layout = static_cast<RopeSpec::Layout>(layout);
  rope.scaling = static_cast<RopeSpec::Scaling>(scaling);
  rope.k_after_rope = after != 0;
}

// Every field that changes bytes, in the order of the format.
template <typename Archive>
void IdentityFields(Archive& archive, uint16_t version, KvSpec& spec, std::string& pipeline,
                    uint8_t& promise) {
  auto dtype = static_cast<uint8_t>(spec.dtype);
  archive(spec.model);
  archive(spec.revision);
  archive(spec.layers);
  archive(spec.kv_heads);
  archive(spec.head_dim_k);
  archive(spec.head_dim_v);
  archive(dtype);
  archive(spec.page_tokens);
  archive(spec.rank);
  archive(spec.world_size);
  RopeFields(archive, spec.rope);
  archive(spec.engine);
  if (version >= kUsualIdentity) FieldsOfVersion2(archive, spec);
  if (version >= kRopesIdentity) {
    RopeFields(archive, spec.other_rope.rope);
    archive(spec.other_rope.layers);
  }
  archive(pipeline);
  archive(promise);
  spec.dtype = static_cast<DType>(dtype);
}

std::string Identity(uint16_t version, KvSpec spec, std::string pipeline, SpacePromise promise) {
  FieldWriter writer;
  uint8_t value = PromiseByte(promise);
  IdentityFields(writer, version, spec, pipeline, value);
  return std::move(writer.out).Take();
}

Fingerprint FingerprintAs(uint16_t version, const KvSpec& spec, absl::string_view pipeline,
                          SpacePromise promise) {
  ByteWriter tagged;
  tagged.PutString16(kFingerprintTags[version]);
  const std::string identity = Identity(version, spec, std::string(pipeline), promise);
  tagged.PutBytes(AsBytes(identity));
  const Sha256Digest digest = Sha256(AsBytes(tagged.bytes()));
  Fingerprint out;
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

}  // namespace

Fingerprint FingerprintOf(const KvSpec& spec, absl::string_view pipeline, SpacePromise promise) {
  return FingerprintAs(IdentityVersion(spec), spec, pipeline, promise);
}

std::string SerializeSpace(const Space& space, const SavedEra& era) {
  ByteWriter out;
  out.Put(VersionOfRecord(space, era));
  out.Put(space.id);
  out.PutString16(space.name);
  out.PutString16(space.recipe);
  if (!space.tenant.empty()) out.PutString16(space.tenant);
  const std::string identity =
      Identity(IdentityVersion(space.spec), space.spec, space.pipeline, space.promise);
  out.PutBytes(AsBytes(identity));
  out.PutBytes(space.fingerprint);
  if (era.generation > 0) {
    out.Put(era.key);
    out.Put(era.generation);
  }
  return std::move(out).Take();
}

SavedEra EraOfSpace(std::span<const uint8_t> bytes) {
  const auto version = ByteReader(bytes).Get<uint16_t>();
  if (version > kLastRecord || !kRecordVersions[version].era || bytes.size() < kEraBytes) return {};
  ByteReader in(bytes.last(kEraBytes));
  SavedEra era;
  era.key = in.Get<uint64_t>();
  era.generation = in.Get<uint64_t>();
  return era;
}

absl::StatusOr<std::shared_ptr<Space>> ParseSpace(std::span<const uint8_t> bytes,
                                                  Calibrations& calibrations) {
  auto space = std::make_shared<Space>();
  FieldReader reader{ByteReader(bytes)};
  const auto record_version = reader.in.Get<uint16_t>();
  if (record_version < 1 || record_version > kLastRecord) {
    return absl::FailedPreconditionError(absl::StrCat("the record of a space has version ",
                                                      record_version, ", this server knows 1 to ",
                                                      kLastRecord));
  }
  const auto [version, has_tenant, has_era] = kRecordVersions[record_version];
  space->id = reader.in.Get<SpaceId>();
  space->name = std::string(reader.in.GetString16());
  space->recipe = std::string(reader.in.GetString16());
  if (has_tenant) {
    space->tenant = std::string(reader.in.GetString16());
    reader.ok = !space->tenant.empty();
  }
  std::string pipeline;
  uint8_t promise = 0;
  IdentityFields(reader, version, space->spec, pipeline, promise);
  const auto fingerprint = reader.in.GetBytes(space->fingerprint.size());
  if (has_era) reader.in.GetBytes(kEraBytes);
  if (!reader.ok || !reader.in.ok() || reader.in.remaining() != 0 || space->id == 0) {
    return absl::DataLossError("the record of a space is damaged");
  }
  std::copy(fingerprint.begin(), fingerprint.end(), space->fingerprint.begin());
  KVSTOW_ASSIGN_OR_RETURN(space->promise, PromiseFromByte(promise));
  if (space->fingerprint != FingerprintAs(version, space->spec, pipeline, space->promise) ||
      !CheckSpaceName(space->name).ok()) {
    return absl::DataLossError("the record of a space does not match its fingerprint");
  }
  if (space->spec.revision.empty()) space->spec.revision = kUnversioned;  // of version 1
  space->fingerprint = FingerprintOf(space->spec, pipeline, space->promise);
  KVSTOW_RETURN_IF_ERROR(Validate(space->spec));
  // The pipeline, not the text: a name's meaning belongs to the build that wrote it.
  KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, SpaceRecipe::Parse(pipeline));
  absl::Status made = MakeCodecs(recipe, calibrations, *space);
  if (absl::IsFailedPrecondition(made)) {
    space->calibration_missing = true;
    space->pipeline = pipeline;
    space->codec = MakeMissingCodec(recipe.hot, space->spec, made);
    if (recipe.cold.has_value()) {
      space->cold = MakeMissingCodec(*recipe.cold, space->spec, made);
    }
    made = absl::OkStatus();
  }
  KVSTOW_RETURN_IF_ERROR(made);
  return space;
}

}  // namespace kvstow
