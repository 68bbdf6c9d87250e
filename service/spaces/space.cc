#include "service/spaces/space.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {

absl::Status CheckSpaceName(absl::string_view name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' ||
           c == '/';
  };
  if (name.empty() || name.size() > kMaxSpaceNameBytes ||
      !std::all_of(name.begin(), name.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the name of a space has 1 to ", kMaxSpaceNameBytes,
        " letters, digits, '.', '_', '-' or '/'; this one has ", name.size(), " bytes, or others"));
  }
  return absl::OkStatus();
}

absl::Status MakeCodecs(const SpaceRecipe& recipe, Calibrations& calibrations, Space& space) {
  KVSTOW_ASSIGN_OR_RETURN(space.codec, calibrations.CodecOf(recipe.hot, space.spec));
  if (recipe.cold.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(space.cold, calibrations.CodecOf(*recipe.cold, space.spec));
  }
  SpaceRecipe named{.hot = space.codec->recipe(), .cold = {}, .divergence = recipe.divergence};
  if (space.cold != nullptr) named.cold = space.cold->recipe();
  space.pipeline = PipelineOf(named);
  if (recipe.divergence.has_value())
    space.fitted = std::make_shared<FittedForm>(*recipe.divergence);
  return absl::OkStatus();
}

FitName FitNameOf(const Space& space) {
  ByteWriter text;
  text.PutString16("kvstow fit 1");
  text.Put(space.id);
  text.PutString16(space.tenant);
  text.PutString16(space.name);
  text.PutBytes(space.fingerprint);
  const Sha256Digest digest = Sha256(AsBytes(text.bytes()));
  FitName out;
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

FitOwner FitOwnerOf(const Space& space) {
  return {.name = FitNameOf(space), .space = space.id, .tenant = space.tenant};
}

}  // namespace kvstow
