// Data keys for tests: the same in every process, so that what one sealed another opens.
#ifndef KVSTOW_TESTS_STORAGE_TEST_KEYS_H_
#define KVSTOW_TESTS_STORAGE_TEST_KEYS_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "storage/seal/data_keys.h"

namespace kvstow {

class TestKeys final : public DataKeys {
 public:
  explicit TestKeys(bool reads_clear = false) : reads_clear_(reads_clear) {}

  bool seals() const override { return true; }
  bool reads_clear() const override { return reads_clear_; }
  absl::StatusOr<DataKey> KeyToSeal(absl::string_view tenant) override {
    if (locked) return absl::UnavailableError("injected: the keys are not here");
    return KeyOf(tenant, newest);
  }
  absl::StatusOr<DataKey> KeyToOpen(absl::string_view tenant, uint32_t id) override {
    if (locked) return absl::UnavailableError("injected: the keys are not here");
    return KeyOf(tenant, id);
  }
  static DataKey KeyOf(absl::string_view tenant, uint32_t id) {
    const auto bytes = Sha256(AsBytes(absl::StrCat("key ", id, " of ", tenant)));
    return {.id = id, .secret = std::make_shared<const SecretKey>(SecretKey(bytes))};
  }

  std::atomic<bool> locked{false};
  std::atomic<uint32_t> newest{1};

 private:
  const bool reads_clear_;
};

// The keys of all stores of a test program: none, or with KVSTOW_TEST_SEALED=1 such keys. So whole
// suites run on sealed stores too.
inline std::shared_ptr<DataKeys> KeysOfRun() {
  const char* const sealed = std::getenv("KVSTOW_TEST_SEALED");
  if (sealed == nullptr || *sealed != '1') return NoDataKeys();
  return std::make_shared<TestKeys>();
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_TEST_KEYS_H_
