// Certificates for tests: an authority that issues what a test wants, good or not.
#ifndef KVSTOW_TESTS_PROTO_CERTIFICATES_H_
#define KVSTOW_TESTS_PROTO_CERTIFICATES_H_

#include <memory>
#include <string>

#include "proto/wire/tls_context.h"

namespace kvstow::testing {

struct CertificateWish {
  std::string name = "kvstow";        // the subject's common name
  std::string alternatives = {};      // as OpenSSL writes them: "DNS:localhost,IP:127.0.0.1"
  int from_day = -1, until_day = 10;  // from now on
  std::string passphrase = {};        // of its key
};

class CertificateAuthority {
 public:
  // Writes its files into `folder`, which outlives it. `above` signs its own certificate; null = it
  // does that itself.
  CertificateAuthority(std::string folder, std::string name,
                       const CertificateAuthority* above = nullptr,
                       const CertificateWish& own = {});
  ~CertificateAuthority();

  // The file of its own certificate.
  std::string file() const { return PathOf(name_, ".pem"); }
  // Writes NAME.pem, with the certificates of the authorities below the first, and NAME.key. Writes
  // over what is there.
  void Issue(const std::string& file_name, const CertificateWish& wish) const;
  std::string certificate(const std::string& file_name) const { return PathOf(file_name, ".pem"); }
  std::string key(const std::string& file_name) const { return PathOf(file_name, ".key"); }

 private:
  struct Parts;
  std::string PathOf(const std::string& name, const std::string& ending) const {
    return folder_ + "/" + name + ending;
  }

  const std::string folder_, name_;
  std::unique_ptr<Parts> parts_;
};

// What most tests want, in one folder: an authority, a server for localhost, 127.0.0.1 and ::1, and
// a worker with a SPIFFE id.
struct Certificates {
  explicit Certificates(const std::string& folder, const std::string& authority = "ca");
  TlsFiles server() const {
    return {.certificate = ca.certificate("server"), .key = ca.key("server")};
  }
  TlsFiles mutual_server() const {
    return {.certificate = ca.certificate("server"), .key = ca.key("server"), .ca = ca.file()};
  }
  TlsFiles anyone() const { return {.ca = ca.file()}; }
  TlsFiles worker() const {
    return {.certificate = ca.certificate("worker"), .key = ca.key("worker"), .ca = ca.file()};
  }
  CertificateAuthority ca;
};
inline constexpr char kServerNames[] = "DNS:localhost,IP:127.0.0.1,IP:::1";
inline constexpr char kWorkerId[] = "spiffe://example.org/worker";

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_PROTO_CERTIFICATES_H_
