#include "base/aes_gcm.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace kvstow {
namespace {

// OpenSSL counts bytes in an int.
constexpr size_t kMostBytes = size_t{1} << 30;

void Must(bool done) {
  if (done) return;
  Log().critical("encryption failed: AES-GCM");
  std::abort();
}

// A look-up by name at every key would cost more than a small message does.
const EVP_CIPHER* Cipher(size_t key_bytes) {
  static const EVP_CIPHER* const kSmall = EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);
  static const EVP_CIPHER* const kLarge = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  Must(kSmall != nullptr && kLarge != nullptr && (key_bytes == 16 || key_bytes == 32));
  return key_bytes == 16 ? kSmall : kLarge;
}

class OpenSslGcm : public AesGcm {
 public:
  OpenSslGcm(Use use, std::span<const uint8_t> key) : context_(EVP_CIPHER_CTX_new()) {
    Must(context_ != nullptr &&
         EVP_CipherInit_ex2(context_, Cipher(key.size()), key.data(), nullptr,
                            use == Use::kSeal ? 1 : 0, nullptr) == 1);
  }
  ~OpenSslGcm() override { EVP_CIPHER_CTX_free(context_); }
  OpenSslGcm(const OpenSslGcm&) = delete;
  OpenSslGcm& operator=(const OpenSslGcm&) = delete;

  void Begin(const GcmNonce& nonce, std::span<const uint8_t> bound) override {
    int bytes = 0;
    Must(EVP_CipherInit_ex2(context_, nullptr, nullptr, nonce.data(), -1, nullptr) == 1);
    if (bound.empty()) return;
    Must(EVP_CipherUpdate(context_, nullptr, &bytes, bound.data(),
                          static_cast<int>(bound.size())) == 1);
  }

  void Update(std::span<const uint8_t> in, uint8_t* out) override {
    while (!in.empty()) {
      const auto piece = in.first(std::min(in.size(), kMostBytes));
      int bytes = 0;
      Must(EVP_CipherUpdate(context_, out, &bytes, piece.data(), static_cast<int>(piece.size())) ==
           1);
      in = in.subspan(piece.size());
      out += piece.size();
    }
  }

  GcmTag Tag() override {
    GcmTag out, none;
    int bytes = 0;
    Must(EVP_EncryptFinal_ex(context_, none.data(), &bytes) == 1 &&
         EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, out.size(), out.data()) == 1);
    return out;
  }

  bool Opens(const GcmTag& tag) override {
    GcmTag copy = tag, none;
    int bytes = 0;
    Must(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, copy.size(), copy.data()) == 1);
    if (EVP_DecryptFinal_ex(context_, none.data(), &bytes) == 1) return true;
    ERR_clear_error();
    return false;
  }

 private:
  EVP_CIPHER_CTX* const context_;
};

}  // namespace

std::unique_ptr<AesGcm> MakeOpenSslGcm(AesGcm::Use use, std::span<const uint8_t> key) {
  return std::make_unique<OpenSslGcm>(use, key);
}

std::unique_ptr<AesGcm> AesGcm::Make(Use use, std::span<const uint8_t> key) {
  auto out = MakeIpsecMbGcm(use, key);
  return out != nullptr ? std::move(out) : MakeOpenSslGcm(use, key);
}

}  // namespace kvstow
