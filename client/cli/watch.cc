#include "client/cli/watch.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace kvstow::cli {
namespace {

// Writes over what the terminal shows, from its top, without clearing it first: that would flicker.
std::string InPlace(const std::string& text) {
  return absl::StrCat("\033[H", absl::StrReplaceAll(text, {{"\n", "\033[K\n"}}), "\033[J");
}

}  // namespace

int Watch(const OutputFlags& flags, bool again, double interval_s,
          const std::function<absl::StatusOr<Look>()>& look) {
  const bool in_place = again && !flags.json() && isatty(STDOUT_FILENO) == 1;
  for (;;) {
    const absl::StatusOr<Look> found = look();
    if (!found.ok()) return Fail(flags, found.status());
    Print(flags, found->json, in_place ? InPlace(found->text) : found->text);
    if (!again) return kDone;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_s));
  }
}

void AddIntervalFlag(const Verb& verb, double& interval_s, const std::string& help) {
  verb.Option("--interval", interval_s, help).Within(0.05, 3600.0).ShowDefault();
}

}  // namespace kvstow::cli
