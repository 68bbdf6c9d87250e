#include "service/spaces.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/joint_run_codec.h"
#include "kernels/recipe.h"
#include "kernels/run_codec.h"

namespace kvstow {
namespace {

constexpr uint16_t kRecordVersion = 1;
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxSpecTextBytes = 1024;  // of model, revision and engine
constexpr char kFingerprintTag[] = "kvstow space v1";

// A field is a 16-bit length and its bytes; numbers are little-endian.
struct FieldWriter {
  ByteWriter out;
  void operator()(std::string& text) { out.PutString16(text); }
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
  void operator()(T& value) {
    const absl::string_view bytes = in.GetString16();
    if (bytes.size() != sizeof(T)) {
      ok = false;
      return;
    }
    std::memcpy(&value, bytes.data(), sizeof(T));
  }
};

// Every field that changes bytes, in the order of the format.
template <typename Archive>
void IdentityFields(Archive& archive, KvSpec& spec, std::string& pipeline, uint8_t& fidelity) {
  auto dtype = static_cast<uint8_t>(spec.dtype);
  auto layout = static_cast<uint8_t>(spec.rope.layout);
  auto scaling = static_cast<uint8_t>(spec.rope.scaling);
  auto after = static_cast<uint8_t>(spec.rope.k_after_rope);
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
  archive(layout);
  archive(scaling);
  archive(after);
  archive(spec.rope.rotary_dims);
  archive(spec.rope.theta);
  archive(spec.rope.factor);
  archive(spec.rope.low_freq_factor);
  archive(spec.rope.high_freq_factor);
  archive(spec.rope.original_context);
  archive(spec.engine);
  archive(pipeline);
  archive(fidelity);
  spec.dtype = static_cast<DType>(dtype);
  spec.rope.layout = static_cast<RopeSpec::Layout>(layout);
  spec.rope.scaling = static_cast<RopeSpec::Scaling>(scaling);
  spec.rope.k_after_rope = after != 0;
}

std::string Identity(KvSpec spec, std::string pipeline, SpaceFidelity fidelity) {
  FieldWriter writer;
  auto value = static_cast<uint8_t>(fidelity);
  IdentityFields(writer, spec, pipeline, value);
  return std::move(writer.out).Take();
}

absl::Status CheckName(absl::string_view name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' ||
           c == '/';
  };
  if (name.empty() || name.size() > kMaxNameBytes ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the name of a space has 1 to ", kMaxNameBytes,
        " letters, digits, '.', '_', '-' or '/'; this one has ", name.size(), " bytes, or others"));
  }
  return absl::OkStatus();
}

absl::Status Differs(absl::string_view name, absl::string_view difference) {
  return absl::FailedPreconditionError(absl::StrCat("space '", name,
                                                    "' is open as something else: ", difference,
                                                    "; use another name for other KV"));
}

absl::Status CheckSame(const Space& have, const SpaceToOpen& asked) {
  if (asked.spec.has_value()) {
    const std::string difference = FirstDifference(have.spec, *asked.spec);
    if (!difference.empty()) return Differs(have.name, difference);
  }
  if (!asked.recipe.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse(asked.recipe));
    if (!(recipe == have.codec->recipe())) {
      return Differs(have.name,
                     absl::StrCat("recipe: ", have.recipe, " here, ", asked.recipe, " asked"));
    }
  }
  if (asked.fidelity.has_value() && *asked.fidelity != have.fidelity) {
    return Differs(have.name,
                   absl::StrCat("fidelity: ", SpaceFidelityName(have.fidelity), " here, ",
                                SpaceFidelityName(*asked.fidelity), " asked"));
  }
  return absl::OkStatus();
}

// UNIMPLEMENTED for a recipe that needs a calibration.
absl::StatusOr<std::shared_ptr<const Codec>> CodecToServe(const Recipe& recipe,
                                                          const KvSpec& spec) {
  KVSTOW_ASSIGN_OR_RETURN(const auto calibration, CalibrationNeeds(recipe));
  if (!calibration.has_value()) return MakeCodec(recipe, spec);
  return absl::UnimplementedError(
      absl::StrCat("recipe '", recipe.text(),
                   "' needs a calibration, and the server holds none yet: use another recipe here, "
                   "or `kvstow codec roundtrip --calibration` without a server"));
}

}  // namespace

absl::string_view SpaceFidelityName(SpaceFidelity fidelity) {
  return fidelity == SpaceFidelity::kExact ? "EXACT" : "DENSE";
}

Fingerprint FingerprintOf(const KvSpec& spec, absl::string_view pipeline, SpaceFidelity fidelity) {
  ByteWriter tagged;
  tagged.PutString16(kFingerprintTag);
  const std::string identity = Identity(spec, std::string(pipeline), fidelity);
  tagged.PutBytes(AsBytes(identity));
  const Sha256Digest digest = Sha256(AsBytes(tagged.bytes()));
  Fingerprint out;
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

std::string SerializeSpace(const Space& space) {
  ByteWriter out;
  out.Put(kRecordVersion);
  out.Put(space.id);
  out.PutString16(space.name);
  out.PutString16(space.recipe);
  const std::string identity =
      Identity(space.spec, space.codec->recipe().pipeline(), space.fidelity);
  out.PutBytes(AsBytes(identity));
  out.PutBytes(space.fingerprint);
  return std::move(out).Take();
}

absl::StatusOr<std::shared_ptr<Space>> ParseSpace(std::span<const uint8_t> bytes) {
  auto space = std::make_shared<Space>();
  FieldReader reader{ByteReader(bytes)};
  const auto version = reader.in.Get<uint16_t>();
  if (version != kRecordVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the record of a space has version ", version,
                                                      ", this server knows ", kRecordVersion));
  }
  space->id = reader.in.Get<SpaceId>();
  space->name = std::string(reader.in.GetString16());
  space->recipe = std::string(reader.in.GetString16());
  std::string pipeline;
  uint8_t fidelity = 0;
  IdentityFields(reader, space->spec, pipeline, fidelity);
  space->fidelity = static_cast<SpaceFidelity>(fidelity);
  const auto fingerprint = reader.in.GetBytes(space->fingerprint.size());
  if (!reader.ok || !reader.in.ok() || reader.in.remaining() != 0 || space->id == 0) {
    return absl::DataLossError("the record of a space is damaged");
  }
  std::copy(fingerprint.begin(), fingerprint.end(), space->fingerprint.begin());
  if (space->fingerprint != FingerprintOf(space->spec, pipeline, space->fidelity) ||
      !CheckName(space->name).ok()) {
    return absl::DataLossError("the record of a space does not match its fingerprint");
  }
  KVSTOW_RETURN_IF_ERROR(Validate(space->spec));
  // The pipeline, not the text: a name's meaning belongs to the build that wrote it.
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse(pipeline));
  KVSTOW_ASSIGN_OR_RETURN(space->codec, MakeCodec(recipe, space->spec));
  return space;
}

Spaces::Spaces(Options options, NewId new_id, Save save)
    : options_(std::move(options)), new_id_(std::move(new_id)), save_(std::move(save)) {}

size_t Spaces::Recover(std::span<const SpaceRecord> records) {
  MutexLock lock(mu_);
  size_t left_out = 0;
  for (const SpaceRecord& record : records) {
    auto space = ParseSpace(record.bytes.span());
    if (!space.ok() || (*space)->id != record.id) {
      ++left_out;
      continue;
    }
    by_name_[(*space)->name] = *std::move(space);
  }
  return left_out;
}

// All of a new space but its id.
absl::StatusOr<std::shared_ptr<Space>> Spaces::Make(const SpaceToOpen& request) const {
  if (!request.spec.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("there is no space '", request.name, "': give its spec to make it"));
  }
  KVSTOW_RETURN_IF_ERROR(Validate(*request.spec));
  for (const std::string* text :
       {&request.spec->model, &request.spec->revision, &request.spec->engine}) {
    if (text->size() > kMaxSpecTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("model, revision and engine of a spec have at most ", kMaxSpecTextBytes,
                       " bytes each; one has ", text->size()));
    }
  }
  auto space = std::make_shared<Space>();
  space->name = request.name;
  space->spec = *request.spec;
  space->recipe = request.recipe.empty() ? options_.default_recipe : request.recipe;
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse(space->recipe));
  if (!recipe.policy_ops().empty()) {
    return absl::UnimplementedError(absl::StrCat(
        "recipe '", recipe.text(),
        "' drops tokens, and replies cannot name the kept ones yet: use its codec alone here, or "
        "`kvstow codec roundtrip` without a server"));
  }
  KVSTOW_ASSIGN_OR_RETURN(space->codec, CodecToServe(recipe, space->spec));
  const bool exact = space->codec->exact();
  space->fidelity =
      request.fidelity.value_or(exact ? SpaceFidelity::kExact : SpaceFidelity::kDense);
  if (space->fidelity == SpaceFidelity::kExact && !exact) {
    return absl::InvalidArgumentError(
        absl::StrCat("fidelity EXACT with recipe '", space->recipe,
                     "', which loses bits: use an exact recipe, as `raw`, or fidelity DENSE"));
  }
  space->fingerprint = FingerprintOf(space->spec, recipe.pipeline(), space->fidelity);
  return space;
}

absl::StatusOr<Spaces::Opened> Spaces::Open(const SpaceToOpen& request) {
  KVSTOW_RETURN_IF_ERROR(CheckName(request.name));
  {
    MutexLock lock(mu_);
    while (creating_.contains(request.name)) created_.Wait(mu_);
    if (const auto it = by_name_.find(request.name); it != by_name_.end()) {
      KVSTOW_RETURN_IF_ERROR(CheckSame(*it->second, request));
      return Opened{it->second, false};
    }
    if (by_name_.size() + creating_.size() >= options_.max_spaces) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", options_.max_spaces, " spaces, and no more are allowed"));
    }
    creating_.insert(request.name);
  }
  auto made = Make(request);
  absl::Status status = made.status();
  if (status.ok()) {
    (*made)->id = new_id_();
    status = save_({.id = (*made)->id, .bytes = SharedBytes::Take(SerializeSpace(**made))});
  }
  MutexLock lock(mu_);
  creating_.erase(request.name);
  created_.NotifyAll();
  if (!status.ok()) return status;
  by_name_[request.name] = *made;
  return Opened{*std::move(made), true};
}

absl::StatusOr<std::shared_ptr<const Space>> Spaces::Find(absl::string_view name) const {
  MutexLock lock(mu_);
  const auto it = by_name_.find(name);
  if (it != by_name_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("space '", name.substr(0, kMaxNameBytes),
                                          "' is not open: call OpenSpace first"));
}

std::shared_ptr<const Space> Spaces::Find(SpaceId id) const {
  MutexLock lock(mu_);
  for (const auto& [name, space] : by_name_) {
    if (space->id == id) return space;
  }
  return nullptr;
}

std::vector<std::shared_ptr<const Space>> Spaces::All() const {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<const Space>> out;
  for (const auto& [name, space] : by_name_) out.push_back(space);
  return out;
}

}  // namespace kvstow
