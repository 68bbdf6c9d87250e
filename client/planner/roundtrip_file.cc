// Reads what `kvstow codec roundtrip --format json` printed.
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/planner/recipe_size.h"

namespace kvstow::planner {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLineBytes = 64 << 10;  // a run takes less than one

absl::StatusOr<double> Number(const Json& run, const char* field) {
  const auto it = run.find(field);
  if (it == run.end()) return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
  const double value = it->is_number() ? it->get<double>() : 0;
  if (value > 0 && value < 1e18) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(field, " must be a number above 0, not ",
                   it->dump(-1, ' ', false, Json::error_handler_t::replace)));
}

absl::StatusOr<RecipeSize> ParseRun(const std::string& line) {
  const Json run = Json::parse(line, nullptr, false);
  if (!run.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  const auto recipe = run.find("recipe");
  if (recipe == run.end() || !recipe->is_string()) {
    return absl::InvalidArgumentError("recipe is missing");
  }
  RecipeSize size{.recipe = recipe->get<std::string>(), .decode_origin = Origin::kMeasured};
  KVSTOW_ASSIGN_OR_RETURN(const double raw, Number(run, "raw_bytes"));
  KVSTOW_ASSIGN_OR_RETURN(const double stored, Number(run, "stored_bytes"));
  KVSTOW_ASSIGN_OR_RETURN(const double seconds, Number(run, "decode_seconds"));
  size.ratio = raw / stored;
  size.decode_bytes_per_s = raw / seconds;
  return size;
}

}  // namespace

absl::Status AddRoundtrips(const std::string& path, std::vector<RecipeSize>& recipes) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  const size_t before = recipes.size();
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<RecipeSize> size =
        line.size() > kMaxLineBytes ? absl::InvalidArgumentError("is too long") : ParseRun(line);
    if (!size.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", size.status().message(),
                       "; expected the output of `kvstow codec roundtrip --format json`"));
    }
    recipes.push_back(*std::move(size));
  }
  if (recipes.size() == before) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": is empty; expected the output of `kvstow codec roundtrip --format "
                     "json`"));
  }
  return absl::OkStatus();
}

}  // namespace kvstow::planner
