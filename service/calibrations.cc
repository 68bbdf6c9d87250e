#include "service/calibrations.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/run_codec.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

class MissingCodec final : public Codec {
 public:
  MissingCodec(Recipe recipe, KvSpec spec, absl::Status why)
      : recipe_(std::move(recipe)), spec_(std::move(spec)), why_(std::move(why)) {}

  const Recipe& recipe() const override { return recipe_; }
  const KvSpec& spec() const override { return spec_; }
  bool exact() const override { return false; }
  uint32_t levels() const override { return 1; }
  absl::StatusOr<EncodedPage> Encode(const PageToEncode&) const override { return why_; }

 private:
  const Recipe recipe_;
  const KvSpec spec_;
  const absl::Status why_;
};

absl::Status FolderError(const std::string& folder, const std::error_code& error) {
  const std::string text =
      absl::StrCat("calibrations: ", folder, ": ", error.message(),
                   ": name a folder that can be read, with files of `kvstow codec calibrate`");
  return error == std::errc::permission_denied ? absl::PermissionDeniedError(text)
                                               : absl::NotFoundError(text);
}

absl::StatusOr<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) return absl::UnavailableError("it cannot be read");
  return bytes;
}

}  // namespace

absl::Status Calibrations::Load() {
  if (folder_.empty()) return absl::OkStatus();
  MutexLock lock(mu_);
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // a file that goes meanwhile is no error
    if (!it->is_regular_file(gone)) continue;
    const std::string path = it->path().string();
    const auto time = it->last_write_time(gone).time_since_epoch().count();
    if (!read_.insert(absl::StrCat(path, "\n", it->file_size(gone), "\n", time)).second) continue;
    const absl::StatusOr<std::string> bytes = ReadFile(it->path());
    const auto added = bytes.ok() ? store_.Add(AsBytes(*bytes)) : bytes.status();
    if (added.ok()) {
      Log().info("calibration {} from {}", HexOf((*added)->id()), path);
    } else {
      Log().warn("{} is left alone: {}", path, std::string(added.status().message()));
    }
  }
  return error ? FolderError(folder_, error) : absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Codec>> Calibrations::CodecOfLoaded(const Recipe& recipe,
                                                                         const KvSpec& spec) const {
  KVSTOW_ASSIGN_OR_RETURN(const auto need, CalibrationNeeds(recipe));
  if (!need.has_value()) return MakeCodec(recipe, spec);
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto calibration, store_.Choose(spec, *need));
  KVSTOW_ASSIGN_OR_RETURN(const Recipe named, NameCalibration(recipe, HexOf(calibration->id())));
  return MakeCodec(named, spec, store_);
}

absl::StatusOr<std::shared_ptr<const Codec>> Calibrations::CodecOf(const Recipe& recipe,
                                                                   const KvSpec& spec) {
  auto codec = CodecOfLoaded(recipe, spec);
  if (!absl::IsFailedPrecondition(codec.status())) return codec;
  const absl::Status loaded = Load();
  if (loaded.ok()) codec = CodecOfLoaded(recipe, spec);
  if (!absl::IsFailedPrecondition(codec.status())) return codec;
  return absl::FailedPreconditionError(absl::StrCat(
      "recipe '", recipe.text(), "': ", codec.status().message(), " and ",
      folder_.empty() ? "start the server with --calibrations FOLDER, where its file is"
                      : absl::StrCat("put its file into the server's folder ", folder_),
      loaded.ok() ? "" : absl::StrCat(" (", loaded.message(), ")")));
}

std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why) {
  return std::make_shared<MissingCodec>(recipe, spec, std::move(why));
}

}  // namespace kvstow
