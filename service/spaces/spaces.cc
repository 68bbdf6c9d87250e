#include "service/spaces/spaces.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_needs.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/recipe.h"
#include "service/spaces/space_recipe.h"
#include "service/spaces/space_record.h"

namespace kvstow {
namespace {

constexpr size_t kMaxSpecTextBytes = 1024;  // of model, revision and engine

// Checks what a new space must say of its model, beyond Validate().
absl::Status CheckIdentity(const KvSpec& spec) {
  if (spec.revision.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.revision is empty: name the revision of the weights, a commit or a "
                     "digest, or write '",
                     kUnversioned, "' and vouch that all workers have the same"));
  }
  for (const std::string* text : {&spec.model, &spec.revision, &spec.engine, &spec.adapter,
                                  &spec.weight_quantization, &spec.kv_scales, &spec.layer_layout}) {
    if (text->size() > kMaxSpecTextBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the texts of a spec have at most ",
                                                     kMaxSpecTextBytes, " bytes each; one has ",
                                                     text->size()));
    }
  }
  return absl::OkStatus();
}

absl::Status Differs(absl::string_view name, absl::string_view difference) {
  return absl::FailedPreconditionError(absl::StrCat("space '", name,
                                                    "' is open as something else: ", difference,
                                                    "; use another name for other KV"));
}

// Returns whether a recipe means this codec, once the recipe names the codec's calibrations.
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
absl::StatusOr<SpaceRecipe> RecipeOf(absl::string_view text, const SpaceToOpen& asked) {
  KVSTOW_ASSIGN_OR_RETURN(SpaceRecipe recipe, SpaceRecipe::Parse(text, asked.normed_keys));
  const absl::string_view queries = asked.queries;
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

// A space of recipe `auto` is fitted in a process that has no calibrations but its own.
absl::Status CheckCanBeFitted(const SpaceRecipe& recipe) {
  if (!recipe.divergence.has_value()) return absl::OkStatus();
  for (const Recipe* form : {&recipe.hot, &*recipe.cold}) {
    KVSTOW_ASSIGN_OR_RETURN(const auto calibration, CalibrationNeeds(*form));
    KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueryNeeds(*form));
    if (!calibration.has_value() && !queries.has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe: auto fits its tables by itself, and its form ", form->text(), " needs a ",
        "calibration: write cold=kvstow, or leave auto out and keep hot=RECIPE,cold=RECIPE"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Serves(const Space& space, const SpaceRecipe& recipe) {
  const bool is_auto = space.fitted != nullptr;
  if (recipe.divergence.has_value() != is_auto) return false;
  if (is_auto && *recipe.divergence != space.fitted->target()) return false;
  if (recipe.cold.has_value() != (space.cold != nullptr)) return false;
  if (!recipe.cold.has_value()) return Means(recipe.hot, *space.codec);
  KVSTOW_ASSIGN_OR_RETURN(const bool cold, Means(*recipe.cold, *space.cold));
  KVSTOW_ASSIGN_OR_RETURN(const bool hot, Means(recipe.hot, *space.codec));
  return hot && cold;
}

// Returns whether the request has the words that the space was made by. It is for this space then,
// even where a preset means more in this version than in the one that made the space.
bool SaysTheSame(const Space& have, const SpaceToOpen& asked) {
  const bool same_words = asked.recipe.empty() || asked.recipe == have.recipe;
  if (!asked.queries.empty() || !same_words) return false;
  return !asked.normed_keys || have.fitted == nullptr || IsForNormedKeys(have.cold->recipe());
}

absl::Status CheckSame(const Space& have, const SpaceToOpen& asked) {
  if (asked.spec.has_value()) {
    const std::string difference = FirstDifference(have.spec, *asked.spec);
    if (!difference.empty()) return Differs(have.name, difference);
  }
  if (!SaysTheSame(have, asked)) {
    const std::string& text = asked.recipe.empty() ? have.recipe : asked.recipe;
    KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, RecipeOf(text, asked));
    KVSTOW_ASSIGN_OR_RETURN(const bool same, Serves(have, recipe));
    if (!same) {
      return Differs(have.name,
                     absl::StrCat("recipe: ", asked.queries.empty() ? have.recipe : have.pipeline,
                                  " here, ", text, " asked",
                                  asked.queries.empty() ? "" : ", with queries ", asked.queries,
                                  asked.normed_keys ? ", for a model that norms its keys" : ""));
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

Spaces::Spaces(Options options, Calibrations& calibrations, NewId new_id, Save save)
    : options_(std::move(options)),
      calibrations_(calibrations),
      new_id_(std::move(new_id)),
      save_(std::move(save)) {}

// Two records have one name when the first could not be read for a while (a master key was missing,
// or the version was an older one), and a worker made the space anew. Then the newer one counts,
// which has the higher id: workers have it open, and a page that was deleted meanwhile is not to
// come back with the older one. The caller drops the older one (server.cc).
size_t Spaces::Recover(std::span<const SpaceRecord> records) {
  MutexLock lock(mu_);
  size_t left_out = 0;
  for (const SpaceRecord& record : records) {
    auto space = ParseSpace(record.bytes.span(), calibrations_);
    const bool moved = space.ok() && !record.tenant.empty() && record.tenant != (*space)->tenant;
    if (!space.ok() || (*space)->id != record.id || moved) {
      ++left_out;
      continue;
    }
    if ((*space)->calibration_missing) {
      Log().warn("space '{}': {}", (*space)->name,
                 std::string((*space)->codec->Encode({}).status().message()));
    }
    const Key key{(*space)->tenant, (*space)->name};
    Entry& entry = by_name_[key];
    if (entry.space != nullptr && entry.space->id > record.id) continue;
    entry = {*std::move(space), options_.clock->Now()};
  }
  left_out_ = left_out;
  return left_out;
}

// All of a new space but its id.
absl::StatusOr<std::shared_ptr<Space>> Spaces::Make(const SpaceToOpen& request, bool may_make) {
  if (!may_make) {
    return absl::NotFoundError(absl::StrCat("there is no space '", request.name,
                                            "': a worker of the tenant that owns it makes it"));
  }
  if (!request.spec.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("there is no space '", request.name, "': give its spec to make it"));
  }
  KVSTOW_RETURN_IF_ERROR(Validate(*request.spec));
  KVSTOW_RETURN_IF_ERROR(CheckIdentity(*request.spec));
  auto space = std::make_shared<Space>();
  space->name = request.name;
  space->spec = *request.spec;
  space->recipe = request.recipe.empty() ? options_.default_recipe : request.recipe;
  KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, RecipeOf(space->recipe, request));
  KVSTOW_RETURN_IF_ERROR(CheckCanBeFitted(recipe));
  KVSTOW_RETURN_IF_ERROR(MakeCodecs(recipe, calibrations_, *space));
  const bool exact = space->codec->exact() && (space->cold == nullptr || space->cold->exact());
  KVSTOW_ASSIGN_OR_RETURN(space->promise, PromiseOf(recipe, exact, request.fidelity,
                                                    request.is_private.value_or(false)));
  space->fingerprint = FingerprintOf(space->spec, space->pipeline, space->promise);
  return space;
}

// Returns the space as it is now. Makes a space anew whose missing calibration has arrived.
absl::StatusOr<std::shared_ptr<const Space>> Spaces::WithCodec(std::shared_ptr<const Space> space) {
  if (!space->calibration_missing) return space;
  auto whole = std::make_shared<Space>(*space);
  KVSTOW_ASSIGN_OR_RETURN(const SpaceRecipe recipe, SpaceRecipe::Parse(space->pipeline));
  KVSTOW_RETURN_IF_ERROR(MakeCodecs(recipe, calibrations_, *whole));
  whole->calibration_missing = false;
  MutexLock lock(mu_);
  const auto it = by_name_.find(Key{whole->tenant, whole->name});
  if (it == by_name_.end() || it->second.space->id != whole->id) {
    return absl::UnavailableError(absl::StrCat("space '", whole->name, "' was just dropped"));
  }
  it->second.space = whole;
  return whole;
}

// Fails with RESOURCE_EXHAUSTED where there is no room for one more space.
absl::Status Spaces::CheckRoom(const std::string& tenant) const {
  const uint64_t most = options_.tenants == nullptr ? 0 : options_.tenants->LimitsOf(tenant).spaces;
  const auto of_tenant = [&](const Key& key) { return key.first == tenant; };
  if (most > 0) {
    const auto there =
        std::ranges::count_if(by_name_, [&](const auto& named) { return of_tenant(named.first); });
    if (static_cast<uint64_t>(there + std::ranges::count_if(creating_, of_tenant)) >= most) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "tenant '", tenant, "' has ", most, " spaces, and no more are allowed: drop one"));
    }
  }
  if (by_name_.size() + creating_.size() < options_.max_spaces) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("there are ", options_.max_spaces, " spaces, and no more are allowed: drop ",
                   "one, or start kvstowd with a larger --max-spaces"));
}

absl::StatusOr<Spaces::Opened> Spaces::Open(const Caller& caller, const SpaceToOpen& request) {
  KVSTOW_RETURN_IF_ERROR(CheckSpaceName(request.name));
  const Access::Meaning meaning = options_.access->MeaningOf(caller.tenant, request.name);
  const bool may_make = meaning.own && caller.role >= Role::kWorker;
  const Key key{meaning.owner, request.name};
  std::shared_ptr<const Space> there;
  {
    MutexLock lock(mu_);
    while (creating_.contains(key)) created_.Wait(mu_);
    if (const auto it = by_name_.find(key); it != by_name_.end()) {
      it->second.used = options_.clock->Now();
      there = it->second.space;
    } else {
      if (may_make) KVSTOW_RETURN_IF_ERROR(CheckRoom(key.first));
      creating_.insert(key);
    }
  }
  if (there != nullptr) {
    KVSTOW_RETURN_IF_ERROR(CheckSame(*there, request));
    KVSTOW_ASSIGN_OR_RETURN(there, WithCodec(std::move(there)));
    return Opened{std::move(there), false};
  }
  auto made = Make(request, may_make);
  absl::Status status = made.status();
  if (status.ok()) {
    (*made)->id = new_id_();
    (*made)->tenant = key.first;
    status = save_({.id = (*made)->id,
                    .bytes = SharedBytes::Take(SerializeSpace(**made)),
                    .tenant = (*made)->tenant});
  }
  MutexLock lock(mu_);
  creating_.erase(key);
  created_.NotifyAll();
  if (!status.ok()) return status;
  by_name_[key] = {*made, options_.clock->Now()};
  return Opened{*std::move(made), true};
}

absl::StatusOr<SpaceToOpen> Spaces::RequestOf(std::span<const uint8_t> record) const {
  KVSTOW_ASSIGN_OR_RETURN(const auto space, ParseSpace(record, calibrations_));
  return SpaceToOpen{.name = space->name,
                     .spec = space->spec,
                     .recipe = space->pipeline,
                     .fidelity = space->promise.fidelity,
                     .is_private = space->promise.is_private};
}

bool Spaces::Finds(const Caller& caller, const Space& space) const {
  return options_.access->MeaningOf(caller.tenant, space.name).owner == space.tenant;
}

absl::StatusOr<std::shared_ptr<const Space>> Spaces::Find(const Caller& caller,
                                                          absl::string_view name) {
  const Key key{options_.access->MeaningOf(caller.tenant, name).owner, std::string(name)};
  MutexLock lock(mu_);
  const auto it = by_name_.find(key);
  if (it == by_name_.end()) {
    return absl::NotFoundError(
        absl::StrCat("space '", name.substr(0, kMaxSpaceNameBytes),
                     "' is not open: `kvstow spaces` lists those that are; a worker "
                     "opens one by OpenSpace"));
  }
  it->second.used = options_.clock->Now();
  return it->second.space;
}

absl::StatusOr<std::shared_ptr<const Space>> Spaces::Find(const Caller& caller,
                                                          absl::string_view name,
                                                          absl::string_view fingerprint,
                                                          SpaceUse use) {
  if (fingerprint.size() != sizeof(Fingerprint)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fingerprint has ", fingerprint.size(), " bytes: a call names its space by its name and ",
        "the ", sizeof(Fingerprint), " bytes that OpenSpace answered"));
  }
  KVSTOW_ASSIGN_OR_RETURN(auto space, Find(caller, name));
  if (use == SpaceUse::kWrite && !options_.access->MeaningOf(caller.tenant, name).write) {
    return absl::PermissionDeniedError(
        absl::StrCat("space '", name, "' is another tenant's, who shares it for reading"));
  }
  if (std::ranges::equal(space->fingerprint, AsBytes(fingerprint))) return space;
  ++mismatches_;
  return absl::FailedPreconditionError(
      absl::StrCat("space '", name, "' has fingerprint ", HexOf(space->fingerprint), " here, ",
                   HexOf(AsBytes(fingerprint)),
                   " was asked: it is another space of that name; open it again, which says what "
                   "differs"));
}

std::shared_ptr<const Space> Spaces::Find(SpaceId id) const {
  MutexLock lock(mu_);
  for (const auto& [name, entry] : by_name_) {
    if (entry.space->id == id) return entry.space;
  }
  return nullptr;
}

std::vector<std::shared_ptr<const Space>> Spaces::All() const {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<const Space>> out;
  for (const auto& [name, entry] : by_name_) out.push_back(entry.space);
  return out;
}

std::vector<std::shared_ptr<const Space>> Spaces::IdlePrivate(Duration idle,
                                                              const std::string* tenant) const {
  std::vector<Entry> found;
  {
    MutexLock lock(mu_);
    const Time before = options_.clock->Now() - idle;
    for (const auto& [name, entry] : by_name_) {
      if (tenant != nullptr && name.first != *tenant) continue;
      if (entry.space->promise.is_private && entry.used <= before) found.push_back(entry);
    }
  }
  std::ranges::sort(found, {}, &Entry::used);
  std::vector<std::shared_ptr<const Space>> out;
  for (Entry& entry : found) out.push_back(std::move(entry.space));
  return out;
}

void Spaces::Touch(const Space& space) {
  MutexLock lock(mu_);
  const auto it = by_name_.find(Key{space.tenant, space.name});
  if (it != by_name_.end()) it->second.used = options_.clock->Now();
}

bool Spaces::Forget(const Space& space) {
  MutexLock lock(mu_);
  const auto it = by_name_.find(Key{space.tenant, space.name});
  if (it == by_name_.end() || it->second.space->id != space.id) return false;
  by_name_.erase(it);
  return true;
}

}  // namespace kvstow
