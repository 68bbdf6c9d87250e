#include "service/ops/cleared_memory.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// jemalloc's; null in a program that is not linked with it.
extern "C" __attribute__((weak)) int mallctl(const char* name, void* old_value, size_t* old_bytes,
                                             void* new_value, size_t new_bytes);

namespace kvstow {
namespace {

constexpr char kVariable[] = "MALLOC_CONF", kOption[] = "junk:free";

absl::string_view JunkOption() {
  const char* junk = "";
  size_t bytes = sizeof(junk);
  if (mallctl == nullptr || mallctl("opt.junk", &junk, &bytes, nullptr, 0) != 0) return "";
  return junk;
}

}  // namespace

absl::Status ClearFreedMemory(char* const* argv) {
  const absl::string_view junk = JunkOption();
  if (junk == "free" || junk == "true") return absl::OkStatus();
  if (junk.empty()) return absl::UnimplementedError("memory is not jemalloc's");
  const char* const before = std::getenv(kVariable);
  const std::string options = before == nullptr ? "" : before;
  if (absl::StrContains(options, "junk:")) {  // somebody's choice, or ours before the new start
    return absl::FailedPreconditionError(absl::StrCat(kVariable, "=", options));
  }
  const std::string more = options.empty() ? kOption : absl::StrCat(options, ",", kOption);
  setenv(kVariable, more.c_str(), 1);
  execv("/proc/self/exe", argv);
  const int error = errno;
  if (before != nullptr) {
    setenv(kVariable, before, 1);
  } else {
    unsetenv(kVariable);
  }
  return absl::UnimplementedError(
      absl::StrCat("the program cannot be started again: ", std::strerror(error)));
}

}  // namespace kvstow
