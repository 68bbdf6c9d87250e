#include "proto/wire/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/wire/tls_secrets.h"

namespace kvstow {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr uint64_t kMaxFileBytes = 1 << 20;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Source = std::unique_ptr<BIO, Free<BIO_free_all>>;

absl::Status Wrong(const std::string& file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tls: ", file, ": ", what));
}

absl::StatusOr<std::string> ReadText(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return Wrong(file, absl::StrCat("cannot be read: ", std::strerror(errno)));
  std::ostringstream text;
  text << in.rdbuf();
  if (text.str().size() > kMaxFileBytes) return Wrong(file, "is too long for a PEM file");
  return text.str();
}

absl::Status CheckDates(const std::string& file, const X509* certificate) {
  const auto date = [](const ASN1_TIME* time) {
    const Source out(BIO_new(BIO_s_mem()));
    ASN1_TIME_print(out.get(), time);
    char* text = nullptr;
    const auto size = static_cast<size_t>(BIO_get_mem_data(out.get(), &text));
    return std::string(text, size);
  };
  const ASN1_TIME* const last = X509_get0_notAfter(certificate);
  if (X509_cmp_current_time(last) < 0) {
    return Wrong(file, absl::StrCat("the certificate expired on ", date(last)));
  }
  const ASN1_TIME* const first = X509_get0_notBefore(certificate);
  if (X509_cmp_current_time(first) > 0) {
    return Wrong(file, absl::StrCat("the certificate is not valid before ", date(first),
                                    ": is the clock right?"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& file,
                                                          const std::string& text) {
  const Source in(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  std::vector<Certificate> out;
  while (X509* const one = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)) {
    out.emplace_back(one);
  }
  ERR_clear_error();  // the end of the file is an error to OpenSSL
  if (out.empty()) return Wrong(file, "holds no certificate in PEM");
  return out;
}

// A key with a passphrase must not ask for it on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ReadKey(const std::string& file, const std::string& text) {
  const Source in(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  Key key(PEM_read_bio_PrivateKey(in.get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return Wrong(file, "holds no private key in PEM without a passphrase");
  return key;
}

absl::Status UseOwn(SSL_CTX* context, const TlsFiles& files, const TlsContext::Loaded& loaded) {
  KVSTOW_ASSIGN_OR_RETURN(std::vector<Certificate> chain,
                          ReadCertificates(files.certificate, loaded.certificate));
  KVSTOW_RETURN_IF_ERROR(CheckDates(files.certificate, chain.front().get()));
  KVSTOW_ASSIGN_OR_RETURN(const Key key, ReadKey(files.key, loaded.key));
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return Wrong(files.key,
                 absl::StrCat("the key does not fit the certificate of ", files.certificate));
  }
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return Wrong(files.certificate, absl::StrCat("is not taken: ", TlsError()));
  }
  for (size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
  return absl::OkStatus();
}

absl::Status UseCa(SSL_CTX* context, const TlsFiles& files, const TlsContext::Loaded& loaded) {
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<Certificate> all,
                          ReadCertificates(files.ca, loaded.ca));
  absl::Status last;
  bool any = false;
  for (const Certificate& one : all) {
    if (absl::Status s = CheckDates(files.ca, one.get()); !s.ok()) {
      last = std::move(s);
      continue;
    }
    any = true;
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get());
    SSL_CTX_add_client_CA(context, one.get());
  }
  ERR_clear_error();
  return any ? absl::OkStatus() : last;
}

// The fastest first: AES-128 takes 10 rounds where AES-256 takes 14.
constexpr char kSuites[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

void SetUp(SSL_CTX* context, bool server, bool asks) {
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, kSuites);
  SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE);
  // No sessions to take up again: a ticket would be something to read on an idle connection, and
  // connections are few and long.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  TlsSecrets::Allow(context);
  const int must = server ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0;
  SSL_CTX_set_verify(context, asks ? SSL_VERIFY_PEER | must : SSL_VERIFY_NONE, nullptr);
}

}  // namespace

std::string TlsError() {
  const char* reason = nullptr;
  if (const unsigned long code = ERR_peek_last_error(); code != 0) {
    reason = ERR_reason_error_string(code);
  }
  ERR_clear_error();
  return reason == nullptr ? "" : reason;
}

TlsContext::TlsContext(bool server, TlsFiles files, std::string peer_name, const Clock& clock)
    : server_(server), files_(std::move(files)), peer_name_(std::move(peer_name)), clock_(clock) {}

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Opened(
    std::shared_ptr<TlsContext> context) {
  MutexLock lock(context->mu_);
  context->stamp_ = context->StampNow();
  KVSTOW_ASSIGN_OR_RETURN(context->loaded_, context->Load());
  return context;
}

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::ForServer(TlsFiles files,
                                                                  const Clock& clock) {
  return Opened(std::shared_ptr<TlsContext>(new TlsContext(true, std::move(files), "", clock)));
}

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::ForClient(TlsFiles files,
                                                                  std::string peer_name,
                                                                  const Clock& clock) {
  return Opened(std::shared_ptr<TlsContext>(
      new TlsContext(false, std::move(files), std::move(peer_name), clock)));
}

absl::StatusOr<std::shared_ptr<TlsContext::Loaded>> TlsContext::Load() const {
  ERR_clear_error();
  auto out = std::make_shared<Loaded>();
  out->context.reset(SSL_CTX_new(server_ ? TLS_server_method() : TLS_client_method()),
                     SSL_CTX_free);
  if (out->context == nullptr) return absl::InternalError(absl::StrCat("tls: ", TlsError()));
  SetUp(out->context.get(), server_, asks_for_certificates());
  if (!files_.certificate.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out->certificate, ReadText(files_.certificate));
    KVSTOW_ASSIGN_OR_RETURN(out->key, ReadText(files_.key));
    KVSTOW_RETURN_IF_ERROR(UseOwn(out->context.get(), files_, *out));
  }
  if (!files_.ca.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out->ca, ReadText(files_.ca));
    KVSTOW_RETURN_IF_ERROR(UseCa(out->context.get(), files_, *out));
  }
  return out;
}

// Tells one state of the files from another. Mounted secrets change by another target of a link,
// which is another inode.
std::string TlsContext::StampNow() const {
  std::string out;
  for (const std::string* file : {&files_.certificate, &files_.key, &files_.ca}) {
    struct stat s {};
    if (!file->empty() && stat(file->c_str(), &s) != 0) s = {};
    absl::StrAppend(&out, s.st_dev, ".", s.st_ino, ".", s.st_size, ".", s.st_mtim.tv_sec, ".",
                    s.st_mtim.tv_nsec, ";");
  }
  return out;
}

std::shared_ptr<const TlsContext::Loaded> TlsContext::Current() {
  MutexLock lock(mu_);
  const Time now = clock_.Now();
  if (now < look_after_) return loaded_;
  look_after_ = now + kLookEvery;
  std::string stamp = StampNow();
  if (stamp == stamp_) return loaded_;
  stamp_ = std::move(stamp);
  auto fresh = Load();
  if (!fresh.ok()) {
    ++broken_reloads_;
    Log().warn("{}; the files from before stay in use", std::string(fresh.status().message()));
    return loaded_;
  }
  loaded_ = *std::move(fresh);
  Log().info("tls: certificates were loaded anew");
  return loaded_;
}

uint64_t TlsContext::broken_reloads() const {
  MutexLock lock(mu_);
  return broken_reloads_;
}

}  // namespace kvstow
