#include "proto/wire/tls_secrets.h"

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/aead.h"

namespace kvstow {
namespace {

int Index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Returns -1 for what is no digit.
int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void TlsSecrets::Allow(SSL_CTX* context) { SSL_CTX_set_keylog_callback(context, Told); }

void TlsSecrets::TakeFrom(SSL* connection) { SSL_set_ex_data(connection, Index(), this); }

void TlsSecrets::Clear() {
  for (Secret* secret : {&client_, &server_}) {
    Cleanse(secret->bytes);
    secret->size = 0;
  }
}

// A line is the name of a secret, the client's random bytes and the secret, both as hex digits.
void TlsSecrets::Told(const SSL* connection, const char* line) {
  auto* const all = static_cast<TlsSecrets*>(SSL_get_ex_data(connection, Index()));
  absl::string_view text(line);
  Secret* secret = nullptr;
  if (all != nullptr && absl::ConsumePrefix(&text, "CLIENT_TRAFFIC_SECRET_0 ")) {
    secret = &all->client_;
  } else if (all != nullptr && absl::ConsumePrefix(&text, "SERVER_TRAFFIC_SECRET_0 ")) {
    secret = &all->server_;
  }
  if (secret == nullptr) return;
  const size_t space = text.find(' ');
  if (space == absl::string_view::npos) return;
  text.remove_prefix(space + 1);
  if (text.size() % 2 != 0 || text.size() / 2 > secret->bytes.size()) return;
  for (size_t i = 0; i < text.size() / 2; ++i) {
    const int high = DigitOf(text[2 * i]), low = DigitOf(text[2 * i + 1]);
    if (high < 0 || low < 0) return;
    secret->bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  secret->size = text.size() / 2;
}

}  // namespace kvstow
