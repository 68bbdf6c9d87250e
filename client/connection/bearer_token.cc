#include "client/connection/bearer_token.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/connection/address_list.h"

namespace kvstow {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // a call's metadata has 8 KiB

absl::Status CheckText(absl::string_view token, absl::string_view where) {
  const bool printable = std::ranges::all_of(
      token, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!token.empty() && token.size() <= kMaxTokenBytes && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, ": a token has 1 to ", kMaxTokenBytes,
                                                 " printable characters, without spaces"));
}

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(kMaxTokenBytes + 2, '\0');  // and the end of its line
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    return absl::InvalidArgumentError(absl::StrCat("token_file: ", file, " cannot be read"));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  absl::StripAsciiWhitespace(&text);
  KVSTOW_RETURN_IF_ERROR(CheckText(text, absl::StrCat("token_file: ", file)));
  return text;
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

absl::Status CheckToken(const ClientOptions& options) {
  if (options.token.empty() && options.token_file.empty()) return absl::OkStatus();
  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError("token: give a token or a token_file, not both");
  }
  for (const ListedAddress& one : ListedIn(options.address)) {
    if (StaysHere(one.address) || !options.tls.ca.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "token: the connection to ", one.address,
        " is not encrypted, and whoever reads along would have the token: use TLS (tls.ca)"));
  }
  if (!options.token.empty()) return CheckText(options.token, "token");
  return ReadToken(options.token_file).status();
}

std::string BearerToken::Current() {
  if (options_.token_file.empty()) return options_.token;
  struct stat now {};
  const bool there = stat(options_.token_file.c_str(), &now) == 0;
  MutexLock lock(mu_);
  if (there && !SameFile(now, seen_)) {
    if (auto token = ReadToken(options_.token_file); token.ok()) {
      from_file_ = *std::move(token);
      seen_ = now;
    }
  }
  return from_file_;
}

void BearerToken::AddTo(grpc::ClientContext& context) {
  const std::string token = Current();
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

}  // namespace kvstow
