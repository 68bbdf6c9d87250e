// What every DataKeys promises, run on each implementation:
//
//   INSTANTIATE_TEST_SUITE_P(Ring, DataKeysConformance, testing::Values(DataKeysCase{"ring",
//   Open}));
//
// `open` is given an empty folder that lives as long as the keys.
#ifndef KVSTOW_TESTS_CONFORMANCE_DATA_KEYS_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DATA_KEYS_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "base/digest.h"
#include "storage/seal/data_keys.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {

struct DataKeysCase {
  std::string name;
  std::function<std::shared_ptr<DataKeys>(const std::string& folder)> open;
  friend std::ostream& operator<<(std::ostream& out, const DataKeysCase& c) {
    return out << c.name;
  }
};

class DataKeysConformance : public testing::TestWithParam<DataKeysCase> {
 protected:
  static std::string Secret(const DataKey& key) { return HexOf(key.secret->bytes()); }

  const TempDir folder_;
  const std::shared_ptr<DataKeys> keys_ = GetParam().open(folder_.path());
};

TEST_P(DataKeysConformance, AKeyThatSealsOpens) {
  if (!keys_->seals()) {
    EXPECT_EQ(keys_->KeyToSeal("acme").status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(keys_->reads_clear());
    return;
  }
  for (const char* tenant : {"", "acme"}) {
    const auto key = keys_->KeyToSeal(tenant);
    ASSERT_TRUE(key.ok()) << key.status();
    EXPECT_NE(key->id, 0u);
    const auto again = keys_->KeyToSeal(tenant), opens = keys_->KeyToOpen(tenant, key->id);
    ASSERT_TRUE(again.ok() && opens.ok());
    EXPECT_EQ(Secret(*again), Secret(*key));
    EXPECT_EQ(Secret(*opens), Secret(*key));
  }
}

TEST_P(DataKeysConformance, NoTenantGetsAnothersKey) {
  if (!keys_->seals()) return;
  const auto ours = keys_->KeyToSeal("acme"), theirs = keys_->KeyToSeal("other");
  ASSERT_TRUE(ours.ok() && theirs.ok());
  EXPECT_NE(Secret(*ours), Secret(*theirs));
  const auto wrong = keys_->KeyToOpen("other", ours->id);
  EXPECT_TRUE(!wrong.ok() || Secret(*wrong) != Secret(*ours));
}

TEST_P(DataKeysConformance, AKeyThatIsNotHereIsOutOfReach) {
  if (keys_->seals()) return;  // the others answer for each id, or lock: their own tests
  EXPECT_EQ(keys_->KeyToOpen("acme", 12345).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_DATA_KEYS_CONFORMANCE_H_
