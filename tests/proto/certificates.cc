#include "tests/proto/certificates.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace kvstow::testing {
namespace {

// Benches and fuzz targets use this without GoogleTest.
void Check(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "certificates: %s\n", what.c_str());
  std::abort();
}

void Extend(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
  Check(extension != nullptr, value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Signed by `issuer`, or by itself.
X509* Make(const CertificateWish& wish, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuers_key,
           bool authority) {
  static long serial = 0;
  X509* const out = X509_new();
  X509_set_version(out, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(out), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(out), 86400L * wish.from_day);
  X509_gmtime_adj(X509_getm_notAfter(out), 86400L * wish.until_day);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(out), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(wish.name.c_str()), -1, -1, 0);
  if (issuer == nullptr) issuer = out;
  X509_set_issuer_name(out, X509_get_subject_name(issuer));
  X509_set_pubkey(out, key);
  Extend(out, issuer, NID_basic_constraints, authority ? "critical,CA:TRUE" : "CA:FALSE");
  if (!wish.alternatives.empty()) Extend(out, issuer, NID_subject_alt_name, wish.alternatives);
  Check(X509_sign(out, issuers_key, EVP_sha256()) > 0, wish.name);
  return out;
}

void Append(const std::string& path, const X509* certificate, const char* mode) {
  FILE* const file = std::fopen(path.c_str(), mode);
  Check(file != nullptr, path);
  PEM_write_X509(file, certificate);
  std::fclose(file);
}

}  // namespace

struct CertificateAuthority::Parts {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = nullptr;
  const CertificateAuthority* above = nullptr;
  ~Parts() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
};

CertificateAuthority::CertificateAuthority(std::string folder, std::string name,
                                           const CertificateAuthority* above,
                                           const CertificateWish& own)
    : folder_(std::move(folder)), name_(std::move(name)), parts_(std::make_unique<Parts>()) {
  CertificateWish wish = own;
  wish.name = name_;
  const Parts& signer = above == nullptr ? *parts_ : *above->parts_;
  parts_->above = above;
  parts_->certificate = Make(wish, parts_->key, signer.certificate, signer.key, true);
  Append(file(), parts_->certificate, "w");
}

CertificateAuthority::~CertificateAuthority() = default;

void CertificateAuthority::Issue(const std::string& file_name, const CertificateWish& wish) const {
  EVP_PKEY* const own = EVP_EC_gen("P-256");
  X509* const made = Make(wish, own, parts_->certificate, parts_->key, false);
  Append(certificate(file_name), made, "w");
  for (const Parts* p = parts_.get(); p->above != nullptr; p = p->above->parts_.get()) {
    Append(certificate(file_name), p->certificate, "a");
  }
  FILE* const file = std::fopen(key(file_name).c_str(), "w");
  Check(file != nullptr, file_name);
  const bool locked = !wish.passphrase.empty();
  PEM_write_PrivateKey(file, own, locked ? EVP_aes_128_cbc() : nullptr,
                       reinterpret_cast<const unsigned char*>(wish.passphrase.data()),
                       static_cast<int>(wish.passphrase.size()), nullptr, nullptr);
  std::fclose(file);
  X509_free(made);
  EVP_PKEY_free(own);
}

Certificates::Certificates(const std::string& folder, const std::string& authority)
    : ca(folder, authority) {
  ca.Issue("server", {.name = "server", .alternatives = kServerNames});
  ca.Issue("worker", {.name = "worker",
                      .alternatives = std::string("URI:") + kWorkerId + ",DNS:worker.example"});
}

}  // namespace kvstow::testing
