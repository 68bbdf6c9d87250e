#include "service/spaces.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/importance/policy.h"
#include "kernels/recipe.h"
#include "kernels/run_codec.h"
#include "service/space_recipe.h"

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
void IdentityFields(Archive& archive, KvSpec& spec, std::string& pipeline, uint8_t& promise) {
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
  archive(promise);
  spec.dtype = static_cast<DType>(dtype);
  spec.rope.layout = static_cast<RopeSpec::Layout>(layout);
  spec.rope.scaling = static_cast<RopeSpec::Scaling>(scaling);
  spec.rope.k_after_rope = after != 0;
}

std::string Identity(KvSpec spec, std::string pipeline, SpacePromise promise) {
  FieldWriter writer;
  uint8_t value = PromiseByte(promise);
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

// Whether a recipe means this codec, once the codec's calibrations are named in it.
absl::StatusOr<bool> Means(const Recipe& recipe, const Codec& codec) {
  KVSTOW_ASSIGN_OR_RETURN(const auto calibration, CalibrationNeeds(codec.recipe()));
  KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueryNeeds(codec.recipe()));
  Recipe named = recipe;
  if (calibration.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(named, NameCalibration(named, calibration->blob));
  }
  if (queries.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(named, NameQueries(named, queries->blob));
  }
  return named == codec.recipe();
}

// The recipe as Open asks for it: its forms read the statistics of queries that the request names.
absl::StatusOr<SpaceRecipe> RecipeOf(absl::string_view text, absl::string_view queries) {
  KVSTOW_ASSIGN_OR_RETURN(SpaceRecipe recipe, SpaceRecipe::Parse(text));
  if (queries.empty()) return recipe;
  bool named = false;
  for (Recipe* form : {&recipe.hot, recipe.cold.has_value() ? &*recipe.cold : nullptr}) {
    if (form == nullptr) continue;
    KVSTOW_ASSIGN_OR_RETURN(*form, NameQueries(*form, queries));
    KVSTOW_ASSIGN_OR_RETURN(const auto need, QueryNeeds(*form));
    named = named || (need.has_value() && need->blob == queries);
  }
  if (named) return recipe;
  return absl::InvalidArgumentError(absl::StrCat("queries: recipe '", text,
                                                 "' reads no statistics of queries, or names "
                                                 "others than ",
                                                 queries, ": leave them out"));
}

absl::StatusOr<bool> Serves(const Space& space, const SpaceRecipe& recipe) {
  if (recipe.cold.has_value() != (space.cold != nullptr)) return false;
  if (!recipe.cold.has_value()) return Means(recipe.hot, *space.codec);
  KVSTOW_ASSIGN_OR_RETURN(const bool cold, Means(*recipe.cold, *space.cold));
  KVSTOW_ASSIGN_OR_RETURN(const bool hot, Means(recipe.hot, *space.codec));
  return hot && cold;
}

// Gives a space the codecs of its recipe. FAILED_PRECONDITION: a calibration is missing.
absl::Status MakeCodecs(const SpaceRecipe& recipe, Calibrations& calibrations, Space& space) {
  KVSTOW_ASSIGN_OR_RETURN(space.codec, calibrations.CodecOf(recipe.hot, space.spec));
  if (recipe.cold.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(space.cold, calibrations.CodecOf(*recipe.cold, space.spec));
  }
  const Recipe* cold = space.cold == nullptr ? nullptr : &space.cold->recipe();
  space.pipeline = PipelineOf(space.codec->recipe(), cold);
  return absl::OkStatus();
}

absl::Status CheckSame(const Space& have, const SpaceToOpen& asked) {
  if (asked.spec.has_value()) {
    const std::string difference = FirstDifference(have.spec, *asked.spec);
    if (!difference.empty()) return Differs(have.name, difference);
  }
  if (!asked.recipe.empty() || !asked.queries.empty()) {
    const std::string& text = asked.recipe.empty() ? have.recipe : asked.recipe;
    KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, RecipeOf(text, asked.queries));
    KVSTOW_ASSIGN_OR_RETURN(const bool same, Serves(have, recipe));
    if (!same) {
      return Differs(have.name,
                     absl::StrCat("recipe: ", asked.queries.empty() ? have.recipe : have.pipeline,
                                  " here, ", text, " asked",
                                  asked.queries.empty() ? "" : ", with queries ", asked.queries));
    }
  }
  const SpacePromise& promise = have.promise;
  if (asked.fidelity.has_value() && *asked.fidelity != promise.fidelity) {
    return Differs(have.name,
                   absl::StrCat("fidelity: ", SpaceFidelityName(promise.fidelity), " here, ",
                                SpaceFidelityName(*asked.fidelity), " asked"));
  }
  if (asked.is_private.value_or(promise.is_private) != promise.is_private) {
    return Differs(have.name, promise.is_private ? "is_private: it is private to a session"
                                                 : "is_private: sessions share it");
  }
  return absl::OkStatus();
}

}  // namespace

Fingerprint FingerprintOf(const KvSpec& spec, absl::string_view pipeline, SpacePromise promise) {
  ByteWriter tagged;
  tagged.PutString16(kFingerprintTag);
  const std::string identity = Identity(spec, std::string(pipeline), promise);
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
  const std::string identity = Identity(space.spec, space.pipeline, space.promise);
  out.PutBytes(AsBytes(identity));
  out.PutBytes(space.fingerprint);
  return std::move(out).Take();
}

absl::StatusOr<std::shared_ptr<Space>> ParseSpace(std::span<const uint8_t> bytes,
                                                  Calibrations& calibrations) {
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
  uint8_t promise = 0;
  IdentityFields(reader, space->spec, pipeline, promise);
  const auto fingerprint = reader.in.GetBytes(space->fingerprint.size());
  if (!reader.ok || !reader.in.ok() || reader.in.remaining() != 0 || space->id == 0) {
    return absl::DataLossError("the record of a space is damaged");
  }
  std::copy(fingerprint.begin(), fingerprint.end(), space->fingerprint.begin());
  KVSTOW_ASSIGN_OR_RETURN(space->promise, PromiseFromByte(promise));
  if (space->fingerprint != FingerprintOf(space->spec, pipeline, space->promise) ||
      !CheckName(space->name).ok()) {
    return absl::DataLossError("the record of a space does not match its fingerprint");
  }
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

Spaces::Spaces(Options options, Calibrations& calibrations, NewId new_id, Save save)
    : options_(std::move(options)),
      calibrations_(calibrations),
      new_id_(std::move(new_id)),
      save_(std::move(save)) {}

size_t Spaces::Recover(std::span<const SpaceRecord> records) {
  MutexLock lock(mu_);
  size_t left_out = 0;
  for (const SpaceRecord& record : records) {
    auto space = ParseSpace(record.bytes.span(), calibrations_);
    if (!space.ok() || (*space)->id != record.id) {
      ++left_out;
      continue;
    }
    if ((*space)->calibration_missing) {
      Log().warn("space '{}': {}", (*space)->name,
                 std::string((*space)->codec->Encode({}).status().message()));
    }
    by_name_[(*space)->name] = *std::move(space);
  }
  return left_out;
}

// All of a new space but its id.
absl::StatusOr<std::shared_ptr<Space>> Spaces::Make(const SpaceToOpen& request) {
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
  KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, RecipeOf(space->recipe, request.queries));
  KVSTOW_RETURN_IF_ERROR(MakeCodecs(recipe, calibrations_, *space));
  const bool exact = space->codec->exact() && (space->cold == nullptr || space->cold->exact());
  KVSTOW_ASSIGN_OR_RETURN(space->promise, PromiseOf(recipe, exact, request.fidelity,
                                                    request.is_private.value_or(false)));
  space->fingerprint = FingerprintOf(space->spec, space->pipeline, space->promise);
  return space;
}

// A space as it is now: one whose calibration was missing is made anew once it is here.
absl::StatusOr<std::shared_ptr<const Space>> Spaces::WithCodec(std::shared_ptr<const Space> space) {
  if (!space->calibration_missing) return space;
  auto whole = std::make_shared<Space>(*space);
  KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, SpaceRecipe::Parse(space->pipeline));
  KVSTOW_RETURN_IF_ERROR(MakeCodecs(recipe, calibrations_, *whole));
  whole->calibration_missing = false;
  MutexLock lock(mu_);
  by_name_[whole->name] = whole;
  return whole;
}

absl::StatusOr<Spaces::Opened> Spaces::Open(const SpaceToOpen& request) {
  KVSTOW_RETURN_IF_ERROR(CheckName(request.name));
  std::shared_ptr<const Space> there;
  {
    MutexLock lock(mu_);
    while (creating_.contains(request.name)) created_.Wait(mu_);
    if (const auto it = by_name_.find(request.name); it != by_name_.end()) {
      there = it->second;
    } else if (by_name_.size() + creating_.size() >= options_.max_spaces) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", options_.max_spaces, " spaces, and no more are allowed"));
    } else {
      creating_.insert(request.name);
    }
  }
  if (there != nullptr) {
    KVSTOW_RETURN_IF_ERROR(CheckSame(*there, request));
    KVSTOW_ASSIGN_OR_RETURN(there, WithCodec(std::move(there)));
    return Opened{std::move(there), false};
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
