#include "service/spaces/calibrations.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/private_folder.h"
#include "base/status_macros.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_needs.h"
#include "kernels/methods/run_codec.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kUnfinished = ".kvcal.tmp";  // a file that is being written

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
  if (may_lack_) {
    if (!fs::exists(folder_, error)) return absl::OkStatus();
    const std::error_code open = TightenFolder(folder_);
    if (open) Log().warn("others may read in {}: {}", folder_, open.message());
  }
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // a file that goes meanwhile is no error
    if (!it->is_regular_file(gone)) continue;
    const std::string path = it->path().string();
    if (absl::EndsWith(path, kUnfinished)) continue;
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

absl::Status Calibrations::Write(const CalibrationId& id, std::span<const uint8_t> blob) const {
  if (folder_.empty()) return absl::OkStatus();
  const fs::path unfinished = fs::path(folder_) / absl::StrCat(HexOf(id), kUnfinished);
  std::error_code error;
  if (may_lack_) error = MakePrivateFolder(folder_);
  const auto failed = [&](absl::string_view what) {
    std::error_code ignored;
    fs::remove(unfinished, ignored);
    return absl::UnavailableError(
        absl::StrCat("calibrations: ", folder_, " cannot be written: ", what,
                     ": make it writable for the server, or put the file there yourself"));
  };
  if (error) return failed(error.message());
  FILE* const file = std::fopen(unfinished.c_str(), "wb");
  bool written = file != nullptr && fchmod(fileno(file), kPrivateFile) == 0 &&
                 std::fwrite(blob.data(), 1, blob.size(), file) == blob.size() &&
                 std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  const int why = errno;
  if (file != nullptr) std::fclose(file);
  if (!written) return failed(std::strerror(why));
  fs::rename(unfinished, fs::path(folder_) / absl::StrCat(HexOf(id), ".kvcal"), error);
  if (error) return failed(error.message());
  const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  written = folder >= 0 && fsync(folder) == 0;
  if (folder >= 0) close(folder);
  return written ? absl::OkStatus() : failed("it cannot be synced");
}

bool Calibrations::BeginSending() {
  MutexLock lock(mu_);
  if (sending_ == kMaxSending) return false;
  ++sending_;
  return true;
}

void Calibrations::EndSending() {
  MutexLock lock(mu_);
  --sending_;
}

absl::StatusOr<Calibrations::Added> Calibrations::Add(std::span<const uint8_t> blob) {
  if (blob.size() > kMaxBlobBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a calibration of ", blob.size(), " bytes; one that is sent has at most ", kMaxBlobBytes));
  }
  const auto calibration = ParseCalibration(blob);
  if (absl::IsDataLoss(calibration.status())) {  // nothing of ours was lost
    return absl::InvalidArgumentError(calibration.status().message());
  }
  KVSTOW_RETURN_IF_ERROR(calibration.status());
  Added out{.id = (*calibration)->id()};
  MutexLock lock(mu_);
  out.already_there = store_.Find(out.id) != nullptr;
  if (out.already_there) return out;
  if (blob.size() > kMaxSentBytes - sent_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "calibrations of ", sent_bytes_, " bytes were sent since the server started, of ",
        kMaxSentBytes, ": an operator may put the file into its folder of calibrations"));
  }
  KVSTOW_RETURN_IF_ERROR(Write(out.id, blob));
  KVSTOW_RETURN_IF_ERROR(store_.Add(blob).status());
  sent_bytes_ += blob.size();
  Log().info("calibration {} was sent, {} bytes", HexOf(out.id), blob.size());
  return out;
}

// A recipe that does not name its calibration in full takes the one that fits.
absl::StatusOr<std::shared_ptr<const Codec>> Calibrations::CodecOfLoaded(const Recipe& recipe,
                                                                         const KvSpec& spec) const {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto need, CalibrationNeeds(recipe));
  KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueryNeeds(recipe));
  Recipe named = recipe;
  if (need.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto calibration, store_.Choose(spec, *need));
    KVSTOW_ASSIGN_OR_RETURN(named, NameCalibration(named, HexOf(calibration->id())));
  }
  if (queries.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto calibration, store_.Choose(spec, *queries));
    KVSTOW_ASSIGN_OR_RETURN(named, NameQueries(named, HexOf(calibration->id())));
  }
  return MakeCodec(named, spec, store_);
}

absl::StatusOr<std::shared_ptr<const Codec>> Calibrations::CodecOf(const Recipe& recipe,
                                                                   const KvSpec& spec) {
  auto codec = CodecOfLoaded(recipe, spec);
  if (!absl::IsFailedPrecondition(codec.status())) return codec;
  const absl::Status loaded = Load();
  if (loaded.ok()) codec = CodecOfLoaded(recipe, spec);
  if (!absl::IsFailedPrecondition(codec.status())) return codec;
  return absl::FailedPreconditionError(
      absl::StrCat("recipe '", recipe.text(), "': ", codec.status().message(), " and ",
                   "send its file with `kvstow codec send`, or ",
                   folder_.empty() ? "start the server with --calibrations FOLDER, where it is"
                                   : absl::StrCat("put it into the server's folder ", folder_),
                   loaded.ok() ? "" : absl::StrCat(" (", loaded.message(), ")")));
}

std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why) {
  return std::make_shared<MissingCodec>(recipe, spec, std::move(why));
}

}  // namespace kvstow
