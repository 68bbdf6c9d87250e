// AES-GCM by Intel's ipsec-mb, https://github.com/intel/intel-ipsec-mb.
#include <openssl/crypto.h>

#include <cstdlib>

#include "base/aes_gcm.h"
#include "base/log.h"

#ifdef KVSTOW_IPSEC_MB
#include <intel-ipsec-mb.h>
#endif

namespace kvstow {

#ifdef KVSTOW_IPSEC_MB
namespace {

// The library's functions for this processor; null where they would not be faster than OpenSSL's.
// Nothing that they write is in the manager, so that all threads share it.
const IMB_MGR* Manager() {
  static const IMB_MGR* const kManager = []() -> const IMB_MGR* {
    IMB_MGR* const manager = alloc_mb_mgr(0);
    if (manager == nullptr) return nullptr;
    init_mb_mgr_auto(manager, nullptr);
    constexpr uint64_t kNeeded = IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
    if ((manager->features & kNeeded) == kNeeded && imb_get_errno(manager) == 0) return manager;
    free_mb_mgr(manager);
    return nullptr;
  }();
  return kManager;
}

class IpsecMbGcm : public AesGcm {
 public:
  IpsecMbGcm(const IMB_MGR* manager, Use use, std::span<const uint8_t> key) {
    const bool small = key.size() == 16;
    if (!small && key.size() != 32) {
      Log().critical("encryption failed: a key of {} bytes", key.size());
      std::abort();
    }
    const bool seals = use == Use::kSeal;
    (small ? manager->gcm128_pre : manager->gcm256_pre)(key.data(), &key_);
    begin_ = small ? manager->gcm128_init : manager->gcm256_init;
    if (seals) {
      update_ = small ? manager->gcm128_enc_update : manager->gcm256_enc_update;
      end_ = small ? manager->gcm128_enc_finalize : manager->gcm256_enc_finalize;
    } else {
      update_ = small ? manager->gcm128_dec_update : manager->gcm256_dec_update;
      end_ = small ? manager->gcm128_dec_finalize : manager->gcm256_dec_finalize;
    }
  }
  ~IpsecMbGcm() override {
    OPENSSL_cleanse(&key_, sizeof(key_));
    OPENSSL_cleanse(&message_, sizeof(message_));
  }
  IpsecMbGcm(const IpsecMbGcm&) = delete;
  IpsecMbGcm& operator=(const IpsecMbGcm&) = delete;

  void Begin(const GcmNonce& nonce, std::span<const uint8_t> bound) override {
    begin_(&key_, &message_, nonce.data(), bound.data(), bound.size());
  }
  void Update(std::span<const uint8_t> in, uint8_t* out) override {
    if (!in.empty()) update_(&key_, &message_, out, in.data(), in.size());
  }
  GcmTag Tag() override {
    GcmTag out;
    end_(&key_, &message_, out.data(), out.size());
    return out;
  }
  bool Opens(const GcmTag& tag) override {
    const GcmTag right = Tag();
    return CRYPTO_memcmp(right.data(), tag.data(), tag.size()) == 0;
  }

 private:
  alignas(64) gcm_key_data key_;
  alignas(64) gcm_context_data message_ = {};
  aes_gcm_init_t begin_;
  aes_gcm_enc_dec_update_t update_;
  aes_gcm_enc_dec_finalize_t end_;
};

}  // namespace

std::unique_ptr<AesGcm> MakeIpsecMbGcm(AesGcm::Use use, std::span<const uint8_t> key) {
  const IMB_MGR* const manager = Manager();
  if (manager == nullptr) return nullptr;
  return std::make_unique<IpsecMbGcm>(manager, use, key);
}

#else

std::unique_ptr<AesGcm> MakeIpsecMbGcm(AesGcm::Use, std::span<const uint8_t>) { return nullptr; }

#endif

}  // namespace kvstow
