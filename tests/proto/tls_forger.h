// Seals what no honest peer sends: a record of TLS 1.3 with any bytes within, type and padding too.
// Its keys come out of OpenSSL's HKDF, so it shares no code with what it tests.
#ifndef KVSTOW_TESTS_PROTO_TLS_FORGER_H_
#define KVSTOW_TESTS_PROTO_TLS_FORGER_H_

#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvstow::testing {

class TlsForger {
 public:
  using Bytes = std::vector<uint8_t>;
  static constexpr uint16_t kSuite = 0x1301;  // TLS_AES_128_GCM_SHA256

  const Bytes& secret() const { return secret_; }
  // At most 256 records, each with the next number.
  Bytes Sealed(const Bytes& inner) {
    const Bytes key = Derived("key", 16);
    Bytes nonce = Derived("iv", 12);
    nonce[11] ^= number_++;
    const size_t size = inner.size() + 16;
    Bytes wire = {23, 3, 3, static_cast<uint8_t>(size >> 8), static_cast<uint8_t>(size)};
    wire.resize(5 + size);
    EVP_CIPHER_CTX* const gcm = EVP_CIPHER_CTX_new();
    int n = 0;
    EVP_EncryptInit_ex(gcm, EVP_aes_128_gcm(), nullptr, key.data(), nonce.data());
    EVP_EncryptUpdate(gcm, nullptr, &n, wire.data(), 5);
    EVP_EncryptUpdate(gcm, wire.data() + 5, &n, inner.data(), static_cast<int>(inner.size()));
    EVP_EncryptFinal_ex(gcm, wire.data(), &n);
    EVP_CIPHER_CTX_ctrl(gcm, EVP_CTRL_AEAD_GET_TAG, 16, wire.data() + 5 + inner.size());
    EVP_CIPHER_CTX_free(gcm);
    return wire;
  }

 private:
  Bytes Derived(const std::string& label, size_t size) const {
    std::string info = {0, static_cast<char>(size), static_cast<char>(6 + label.size())};
    info += "tls13 " + label + std::string(1, '\0');
    EVP_PKEY_CTX* const hkdf = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
    Bytes out(size);
    EVP_PKEY_derive_init(hkdf);
    EVP_PKEY_CTX_set_hkdf_mode(hkdf, EVP_PKEY_HKDEF_MODE_EXPAND_ONLY);
    EVP_PKEY_CTX_set_hkdf_md(hkdf, EVP_sha256());
    EVP_PKEY_CTX_set1_hkdf_key(hkdf, secret_.data(), static_cast<int>(secret_.size()));
    EVP_PKEY_CTX_add1_hkdf_info(hkdf, reinterpret_cast<const uint8_t*>(info.data()),
                                static_cast<int>(info.size()));
    EVP_PKEY_derive(hkdf, out.data(), &size);
    EVP_PKEY_CTX_free(hkdf);
    return out;
  }

  const Bytes secret_ = Bytes(32, 0x5a);
  uint8_t number_ = 0;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_PROTO_TLS_FORGER_H_
