#include "service/keys/master_key.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"

extern char** environ;

namespace kvstow {
namespace {

constexpr size_t kMostText = 64 << 10;

absl::Status Failed(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat("master key ", what, ": ", std::strerror(error)));
}

// Text that is cleared when it goes. It never grows, so that no copy stays behind.
class SecretText {
 public:
  SecretText() { text_.reserve(kMostText + 1); }
  ~SecretText() { Cleanse({reinterpret_cast<uint8_t*>(text_.data()), text_.capacity()}); }
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
  absl::string_view view() const { return text_; }
  // Reads what `fd` has; 0 at its end, -1 after an error.
  ssize_t ReadFrom(int fd) {
    const size_t had = text_.size(), room = kMostText + 1 - had;
    text_.resize(had + room);
    const ssize_t n = read(fd, text_.data() + had, room);
    text_.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return n;
  }
  bool too_long() const { return text_.size() > kMostText; }

 private:
  std::string text_;
};

absl::Status ReadFile(const std::string& path, SecretText& out) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return Failed(path, errno);
  struct stat facts {};
  if (fstat(file.get(), &facts) == 0 && (facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    Log().warn("master key {}: others than its owner may use the file: chmod 600 it", path);
  }
  for (ssize_t n = 1; n != 0 && !out.too_long();) {
    n = out.ReadFrom(file.get());
    if (n < 0 && errno != EINTR) return Failed(path, errno);
  }
  return absl::OkStatus();
}

// Reads what a child says, until it says no more. Returns an error after `time`.
absl::Status Listen(int fd, Duration time, absl::string_view what, SecretText& out) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!out.too_long()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = left.count() <= 0 ? 0 : poll(&one, 1, static_cast<int>(left.count()));
    if (ready == 0) {
      return absl::UnavailableError(
          absl::StrCat("master key ", what, ": the command gave no key in time"));
    }
    const ssize_t n = ready < 0 ? -1 : out.ReadFrom(fd);
    if (n == 0) break;
    if (n < 0 && errno != EINTR) return Failed(what, errno);
  }
  return absl::OkStatus();
}

absl::Status RunCommand(const std::string& command, Duration time, SecretText& out) {
  std::vector<std::string> words = absl::StrSplit(command, ' ', absl::SkipEmpty());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Failed(words[0], errno);
  const Descriptor from(ends[0]);
  pid_t child = 0;
  int error = 0;
  {
    const Descriptor to(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;  // the server's threads block signals
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    error = posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  if (error != 0) return Failed(words[0], error);
  const absl::Status heard = Listen(from.get(), time, words[0], out);
  if (!heard.ok() || out.too_long()) kill(-child, SIGKILL);  // and its own children
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  KVSTOW_RETURN_IF_ERROR(heard);
  if (out.too_long() || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "master key ", words[0], ": the command failed (", WIFEXITED(status) ? "exit " : "signal ",
      WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), ")"));
}

// Returns the key that a line spells, if it does.
std::shared_ptr<const SecretKey> KeyOfLine(absl::string_view line) {
  std::string bytes;
  const bool hex = line.size() == 2 * kAeadKeyBytes &&
                   std::ranges::all_of(line, [](char c) { return absl::ascii_isxdigit(c); });
  if (hex) {
    bytes = absl::HexStringToBytes(line);
  } else if (!absl::Base64Unescape(line, &bytes)) {
    bytes.clear();
  }
  std::shared_ptr<const SecretKey> out;
  if (bytes.size() == kAeadKeyBytes) {
    out = std::make_shared<const SecretKey>(SecretKey(AsBytes(bytes).first<kAeadKeyBytes>()));
  }
  Cleanse({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
  return out;
}

// Of a digest, which nobody can turn back: a key has 256 random bits.
uint64_t IdOf(const SecretKey& key) {
  ByteWriter text;
  text.PutBytes(AsBytes("kvstow master key"));
  std::array<uint8_t, 17 + kAeadKeyBytes> bytes;
  std::copy_n(AsBytes(text.bytes()).begin(), 17, bytes.begin());
  std::copy(key.bytes().begin(), key.bytes().end(), bytes.begin() + 17);
  const Sha256Digest digest = Sha256(bytes);
  Cleanse(bytes);
  return ByteReader(digest).Get<uint64_t>();
}

}  // namespace

absl::Status CheckMasterKeySource(absl::string_view source) {
  for (const absl::string_view kind : {"file:", "env:", "command:"}) {
    absl::string_view rest = source;
    if (absl::ConsumePrefix(&rest, kind) && !absl::StripAsciiWhitespace(rest).empty()) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", source.substr(0, 8),
                   "...' is not a source of a key: write file:PATH, env:NAME or command:PROGRAM"));
}

absl::StatusOr<std::vector<MasterKey>> ReadMasterKeys(const std::string& source, Duration time) {
  KVSTOW_RETURN_IF_ERROR(CheckMasterKeySource(source));
  absl::string_view rest = source;
  if (absl::ConsumePrefix(&rest, "env:")) {
    const std::string name(rest);
    const char* const text = std::getenv(name.c_str());
    if (text != nullptr) return ParseMasterKeys(text, name);
    return absl::UnavailableError(
        absl::StrCat("master key: the environment has no variable ", name));
  }
  SecretText text;
  std::string what;
  if (absl::ConsumePrefix(&rest, "file:")) {
    what = std::string(rest);
    KVSTOW_RETURN_IF_ERROR(ReadFile(what, text));
  } else {
    absl::ConsumePrefix(&rest, "command:");
    KVSTOW_RETURN_IF_ERROR(RunCommand(std::string(rest), time, text));
    what = std::string(absl::StripAsciiWhitespace(rest).substr(0, rest.find(' ')));
  }
  if (text.too_long()) {
    return absl::InvalidArgumentError(absl::StrCat("master key ", what, ": more than 64 KiB"));
  }
  return ParseMasterKeys(text.view(), what);
}

absl::StatusOr<std::vector<MasterKey>> ParseMasterKeys(absl::string_view text,
                                                       absl::string_view what) {
  std::vector<MasterKey> out;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    std::shared_ptr<const SecretKey> key = KeyOfLine(line);
    if (key == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("master key ", what, ": line ", number,
                       " is not 32 bytes as 64 hexadecimal digits or as base64; `openssl rand -hex "
                       "32` makes a key"));
    }
    const uint64_t id = IdOf(*key);
    out.push_back({id, std::move(key)});
  }
  if (!out.empty()) return out;
  return absl::UnavailableError(absl::StrCat("master key ", what, ": there is no key in it"));
}

absl::StatusOr<std::shared_ptr<MasterKeys>> MasterKeys::Open(const std::string& source) {
  KVSTOW_RETURN_IF_ERROR(CheckMasterKeySource(source));
  if (prctl(PR_SET_DUMPABLE, 0) != 0) Log().warn("a core dump of this process may hold keys");
  std::shared_ptr<MasterKeys> out(new MasterKeys(source));
  if (const absl::Status s = out->Reload(); !s.ok()) {
    Log().error("{}; nothing is sealed, so nothing leaves memory, and what is there stays as it is",
                std::string(s.message()));
  }
  return out;
}

absl::Status MasterKeys::Reload() {
  KVSTOW_ASSIGN_OR_RETURN(std::vector<MasterKey> keys, ReadMasterKeys(source_));
  MutexLock lock(mu_);
  keys_ = std::move(keys);
  return absl::OkStatus();
}

std::vector<MasterKey> MasterKeys::Current() const {
  MutexLock lock(mu_);
  return keys_;
}

}  // namespace kvstow
