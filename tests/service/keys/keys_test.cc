// Master keys, the file of data keys, and the ring over both; then a store with them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "absl/strings/escaping.h"
#include "base/digest.h"
#include "service/keys/key_file.h"
#include "service/keys/key_ring.h"
#include "service/keys/master_key.h"
#include "tests/conformance/data_keys_conformance.h"
#include "tests/paths.h"
#include "tests/storage/store/store_fixture.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::HasSubstr;
using testing::Not;

std::string HexKey(uint8_t byte) { return HexOf(std::vector<uint8_t>(kAeadKeyBytes, byte)); }

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(MasterKey, HexAndBase64AndCommentsAndOrder) {
  const std::string base64 = absl::Base64Escape(std::string(kAeadKeyBytes, '\2'));
  const auto keys =
      ParseMasterKeys(absl::StrCat("# ours\n\n  ", HexKey(1), " \r\n", base64, "\n"), "text");
  ASSERT_OK(keys.status());
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ(HexOf((*keys)[0].secret->bytes()), HexKey(1));
  EXPECT_EQ(HexOf((*keys)[1].secret->bytes()), HexKey(2));
  EXPECT_NE((*keys)[0].id, (*keys)[1].id);
  EXPECT_EQ((*ParseMasterKeys(HexKey(1), ""))[0].id, (*keys)[0].id) << "the same in every process";
}

TEST(MasterKey, OtherTextIsNamedAndNeverQuoted) {
  for (const std::string& text :
       {HexKey(1).substr(1), HexKey(1) + "0", std::string("secret"), HexKey(1) + "\nsecret",
        absl::Base64Escape(std::string(31, 'x')), std::string(64, 'g')}) {
    const absl::Status s = ParseMasterKeys(text, "/etc/a.key").status();
    EXPECT_THAT(s, HasCode(StatusCode::kInvalidArgument)) << text;
    EXPECT_THAT(std::string(s.message()), HasSubstr("/etc/a.key"));
    EXPECT_THAT(std::string(s.message()), Not(HasSubstr("secret")));
    EXPECT_THAT(std::string(s.message()), Not(HasSubstr(HexKey(1).substr(0, 16))));
  }
  for (const char* text : {"", "\n\n", "# nothing\n"}) {
    EXPECT_THAT(ParseMasterKeys(text, "x").status(), HasCode(StatusCode::kUnavailable)) << text;
  }
}

TEST(MasterKey, EverySource) {
  const TempDir dir;
  const std::string path = dir.path() + "/master.key";
  EXPECT_THAT(ReadMasterKeys("file:" + path).status(), HasCode(StatusCode::kUnavailable));
  std::ofstream(path) << HexKey(5) << "\n";
  ASSERT_EQ(setenv("KVSTOW_KEYS_TEST", HexKey(5).c_str(), 1), 0);
  for (const std::string& source : {"file:" + path, std::string("env:KVSTOW_KEYS_TEST"),
                                    "command:cat " + path, "command: cat  " + path}) {
    const auto keys = ReadMasterKeys(source);
    ASSERT_OK(keys.status());
    EXPECT_EQ(HexOf((*keys)[0].secret->bytes()), HexKey(5)) << source;
  }
  EXPECT_THAT(ReadMasterKeys("env:KVSTOW_NO_SUCH").status(), HasCode(StatusCode::kUnavailable));
  std::ofstream(path) << std::string(70'000, '\n');
  EXPECT_THAT(ReadMasterKeys("file:" + path).status(), HasCode(StatusCode::kInvalidArgument));
  for (const char* source : {"", "file:", "env: ", "command:  ", "http://key", "FILE:x"}) {
    EXPECT_THAT(CheckMasterKeySource(source), HasCode(StatusCode::kInvalidArgument)) << source;
  }
}

TEST(MasterKey, CommandsThatFail) {
  for (const char* command :
       {"command:false", "command:/no/such/program", "command:true", "command:cat /no/such/file"}) {
    EXPECT_THAT(ReadMasterKeys(command).status(), HasCode(StatusCode::kUnavailable)) << command;
  }
  const absl::Status slow =
      ReadMasterKeys("command:sleep 600", std::chrono::milliseconds(1)).status();
  EXPECT_THAT(slow, HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(std::string(slow.message()), HasSubstr("in time"));
  EXPECT_THAT(ReadMasterKeys("command:yes").status(), HasCode(StatusCode::kInvalidArgument))
      << "an endless answer";
}

KeyFile Example() {
  AeadNonce nonce;
  nonce.fill(7);
  const SecretKey master(std::array<uint8_t, kAeadKeyBytes>{1}),
      secret(std::array<uint8_t, kAeadKeyBytes>{2});
  return {.reads_clear = true,
          .keys = {Wrap(master, 11, 1001, "", true, secret, nonce),
                   Wrap(master, 12, 1002, "acme", true, secret, nonce)}};
}

TEST(KeyFile, GoldenBytes) {
  const std::string bytes = SerializeKeyFile(Example());
  const std::string golden = Content(TestsPath("golden/keys_v1.bin"));
  EXPECT_EQ(HexOf(AsBytes(bytes)), HexOf(AsBytes(golden)));
  const auto parsed = ParseKeyFile(AsBytes(golden));
  ASSERT_OK(parsed.status());
  EXPECT_TRUE(*parsed == Example());
}

TEST(KeyFile, EveryDamageIsNoticed) {
  const std::string bytes = SerializeKeyFile(Example());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    EXPECT_FALSE(ParseKeyFile(AsBytes(flipped)).ok()) << at;
    EXPECT_FALSE(ParseKeyFile(AsBytes(bytes).first(at)).ok()) << at;
  }
  EXPECT_FALSE(ParseKeyFile(AsBytes(bytes + "x")).ok());
}

TEST(KeyFile, AWrappedKeyIsBoundToWhatItIs) {
  const SecretKey master = SecretKey::Random(), other = SecretKey::Random();
  const SecretKey secret = SecretKey::Random();
  const WrappedKey wrapped = Wrap(master, 1, 5, "acme", false, secret);
  const auto back = Unwrap(master, wrapped, false);
  ASSERT_OK(back.status());
  EXPECT_EQ(HexOf(back->bytes()), HexOf(secret.bytes()));
  EXPECT_FALSE(Unwrap(other, wrapped, false).ok());
  EXPECT_FALSE(Unwrap(master, wrapped, true).ok()) << "a store does not become one that was clear";
  WrappedKey moved = wrapped;
  moved.tenant = "other";
  EXPECT_FALSE(Unwrap(master, moved, false).ok());
  moved = wrapped;
  moved.id = 6;
  EXPECT_FALSE(Unwrap(master, moved, false).ok());
}

class KeyRingTest : public testing::Test {
 protected:
  std::shared_ptr<KeyRing> Open() {
    auto ring = KeyRing::Open(folder_, "file:" + master_);
    EXPECT_OK(ring.status());
    return ring.ok() ? *ring : nullptr;
  }
  void SetMaster(const std::string& text) { std::ofstream(master_) << text; }
  static std::string Secret(const absl::StatusOr<DataKey>& key) {
    return key.ok() ? HexOf(key->secret->bytes()) : key.status().ToString();
  }

  const TempDir dir_;
  const std::string master_ = dir_.path() + "/master.key", folder_ = dir_.path() + "/store";
  const std::string file_ = folder_ + "/keys";
};

TEST_F(KeyRingTest, KeysComeBackAndTheFileHoldsNoneInClear) {
  SetMaster(HexKey(1));
  auto ring = Open();
  const auto acme = ring->KeyToSeal("acme"), one = ring->KeyToSeal("");
  ASSERT_OK(acme.status());
  EXPECT_NE(Secret(acme), Secret(one));
  EXPECT_EQ(Secret(ring->KeyToSeal("acme")), Secret(acme)) << "one key serves";
  struct stat facts {};
  ASSERT_EQ(stat(file_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const std::string bytes = Content(file_);
  EXPECT_EQ(bytes.find(std::string(AsString(acme->secret->bytes()))), std::string::npos);
  ring = Open();
  EXPECT_EQ(Secret(ring->KeyToSeal("acme")), Secret(acme));
  EXPECT_EQ(Secret(ring->KeyToOpen("", one->id)), Secret(one));
  EXPECT_FALSE(ring->KeyToOpen("acme", one->id).ok()) << "it is another tenant's";
  EXPECT_FALSE(ring->reads_clear());
}

TEST_F(KeyRingTest, RotatingATenantsKeyKeepsTheOldOne) {
  SetMaster(HexKey(1));
  auto ring = Open();
  const auto old = ring->KeyToSeal("acme");
  ASSERT_OK(ring->Rotate("acme"));
  for (int i = 0; i < 2; ++i, ring = Open()) {
    const auto now = ring->KeyToSeal("acme");
    EXPECT_NE(now->id, old->id);
    EXPECT_EQ(Secret(ring->KeyToOpen("acme", old->id)), Secret(old));
    EXPECT_EQ(ring->counts().keys, 2u);
  }
}

TEST_F(KeyRingTest, RotatingTheMasterKeyWithoutARestart) {
  SetMaster(HexKey(1));
  auto ring = Open();
  const auto acme = ring->KeyToSeal("acme");
  const std::string before = Content(file_);
  SetMaster(HexKey(2) + "\n" + HexKey(1) + "\n");
  ASSERT_OK(ring->Reload());
  EXPECT_NE(Content(file_), before);
  EXPECT_EQ(Secret(ring->KeyToSeal("acme")), Secret(acme));
  SetMaster(HexKey(2));
  ASSERT_OK(ring->Reload());
  ring = Open();
  EXPECT_EQ(Secret(ring->KeyToSeal("acme")), Secret(acme)) << "the old one is not needed any more";
  // A source that is gone or wrong changes nothing.
  for (const char* text : {"", "nonsense"}) {
    SetMaster(text);
    EXPECT_FALSE(ring->Reload().ok());
    EXPECT_EQ(Secret(ring->KeyToSeal("acme")), Secret(acme));
  }
}

TEST_F(KeyRingTest, AWrongMasterKeyLocksAndTheRightOneUnlocks) {
  SetMaster(HexKey(1));
  const auto acme = Open()->KeyToSeal("acme");
  SetMaster(HexKey(2));
  auto ring = Open();
  EXPECT_EQ(ring->counts().locked, 1u);
  EXPECT_THAT(ring->KeyToOpen("acme", acme->id).status(), HasCode(StatusCode::kUnavailable));
  const auto meanwhile = ring->KeyToSeal("acme");
  ASSERT_OK(meanwhile.status());
  EXPECT_NE(meanwhile->id, acme->id);
  SetMaster(HexKey(1) + "\n" + HexKey(2));
  ASSERT_OK(ring->Reload());
  EXPECT_EQ(ring->counts().locked, 0u);
  EXPECT_EQ(Secret(ring->KeyToOpen("acme", acme->id)), Secret(acme));
  EXPECT_EQ(Secret(ring->KeyToOpen("acme", meanwhile->id)), Secret(meanwhile));
}

TEST_F(KeyRingTest, WithoutAMasterKeyNothingIsSealedAndNothingLost) {
  SetMaster(HexKey(1));
  const auto acme = Open()->KeyToSeal("acme");
  fs::remove(master_);
  auto ring = Open();
  EXPECT_TRUE(ring->seals());
  EXPECT_THAT(ring->KeyToSeal("acme").status(), HasCode(StatusCode::kUnavailable));
  EXPECT_THAT(ring->Rotate("acme"), HasCode(StatusCode::kUnavailable));
  SetMaster(HexKey(1));
  ASSERT_OK(ring->Reload());
  EXPECT_EQ(Secret(ring->KeyToSeal("acme")), Secret(acme));
}

TEST_F(KeyRingTest, DroppingATenantErasesItsKeysAlone) {
  SetMaster(HexKey(1));
  auto ring = Open();
  const auto acme = ring->KeyToSeal("acme"), other = ring->KeyToSeal("other");
  const WrappedKey wrapped = ParseKeyFile(AsBytes(Content(file_)))->keys[0];
  const int old = open(file_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_OK(ring->Drop("acme"));
  EXPECT_FALSE(ring->KeyToOpen("acme", acme->id).ok());
  EXPECT_EQ(Secret(ring->KeyToOpen("other", other->id)), Secret(other));
  EXPECT_NE(Secret(ring->KeyToSeal("acme")), Secret(acme)) << "a new life has a new key";
  // Neither the file nor what was in its place holds the wrapped key any more.
  std::string bytes(4096, '\0');
  ASSERT_GE(pread(old, bytes.data(), bytes.size(), 0), 0);
  close(old);
  for (const std::string& text : {bytes, Content(file_)}) {
    EXPECT_EQ(text.find(std::string(AsString(wrapped.secret))), std::string::npos);
  }
}

TEST_F(KeyRingTest, ADamagedFileIsSetAside) {
  SetMaster(HexKey(1));
  const auto acme = Open()->KeyToSeal("acme");
  const std::string good = Content(file_);
  for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2), "x" + good}) {
    std::ofstream(file_, std::ios::binary) << bad;
    auto ring = Open();
    EXPECT_NE(Secret(ring->KeyToSeal("acme")), Secret(acme));
  }
  EXPECT_TRUE(fs::exists(file_ + ".damaged-3"));
  std::ofstream(file_, std::ios::binary) << good;
  EXPECT_EQ(Secret(Open()->KeyToSeal("acme")), Secret(acme));
}

TEST_F(KeyRingTest, SourcesThatAreNoneAreRefused) {
  EXPECT_THAT(KeyRing::Open(folder_, "nothing").status(), HasCode(StatusCode::kInvalidArgument));
}

TEST_F(KeyRingTest, ManyThreadsGetOneKeyATenant) {
  SetMaster(HexKey(1));
  const auto ring = Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) EXPECT_OK(ring->KeyToSeal(absl::StrCat("tenant ", i)).status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ring->counts().keys, 20u);
}

std::shared_ptr<DataKeys> OpenRing(const std::string& folder) {
  std::ofstream(folder + "/master.key") << HexKey(3);
  return *KeyRing::Open(folder + "/store", "file:" + folder + "/master.key");
}
INSTANTIATE_TEST_SUITE_P(
    All, DataKeysConformance,
    testing::Values(DataKeysCase{"ring", OpenRing},
                    DataKeysCase{"test", [](auto&) { return std::make_shared<TestKeys>(); }},
                    DataKeysCase{"none", [](auto&) { return NoDataKeys(); }}));

// A store whose keys are a ring's.
class RingStoreTest : public StoreTest {
 protected:
  void Start(const std::string& masters, uint64_t disk = 64 << 20) {
    store_.reset();
    keys_.reset();
    const std::string path = masters_.path() + "/master.key";
    if (masters.empty()) {
      fs::remove(path);
    } else {
      std::ofstream(path) << masters;
    }
    auto ring = KeyRing::Open(dir_.path(), "file:" + path);
    ASSERT_OK(ring.status());
    ring_ = *ring;
    keys_ = ring_;
    options_.budget_bytes = {0, 1 << 20, disk};
    OpenStore();
  }
  void SaveTenants() {
    for (const auto& [id, tenant] : {std::pair(2u, "acme"), {3u, "other"}}) {
      ASSERT_OK(store_->SaveSpace(
          {.id = id, .bytes = SharedBytes::Take(std::string("space")), .tenant = tenant}));
    }
  }
  static PrfPage PageOf(SpaceId space) {
    return {.key = space, .sizes = {2000, 9000}, .space = space};
  }

  const TempDir masters_;
  std::shared_ptr<KeyRing> ring_;
};

TEST_F(RingStoreTest, WrongMissingAndRightMasterKeys) {
  Start(HexKey(1));
  SaveTenants();
  for (const SpaceId id : {2, 3}) ASSERT_OK(Put(PageOf(id), Ack::kProcess).status());
  for (const std::string& masters : {HexKey(2), std::string()}) {
    Start(masters);
    EXPECT_EQ(ReadBack(PageOf(2)) + ReadBack(PageOf(3)), 0u);
    EXPECT_EQ(store_->residency().Counters().locked_records, 4u);
    EXPECT_EQ(store_->residency().Counters().damaged_records, 0u);
  }
  Start(HexKey(1));
  EXPECT_EQ(ReadBack(PageOf(2)) + ReadBack(PageOf(3)), 4u);
}

TEST_F(RingStoreTest, ADroppedTenantsPagesAreNoise) {
  Start(HexKey(1));
  SaveTenants();
  for (const SpaceId id : {2, 3}) ASSERT_OK(Put(PageOf(id), Ack::kProcess).status());
  ASSERT_OK(ring_->Drop("acme"));  // and nothing else: the bytes are still on the disk
  Start(HexKey(1));
  EXPECT_EQ(ReadBack(PageOf(2)), 0u);
  EXPECT_EQ(ReadBack(PageOf(3)), 2u);
  EXPECT_EQ(store_->residency().Counters().locked_records, 2u);
}

TEST_F(RingStoreTest, AStoreInClearSaysThatItWas) {
  options_.budget_bytes = {0, 1 << 20, 64 << 20};
  Reopen();
  ASSERT_OK(Put({.key = 1}, Ack::kProcess).status());
  Start(HexKey(1));
  EXPECT_TRUE(ring_->reads_clear());
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
  Start(HexKey(1));
  EXPECT_EQ(ReadBack({.key = 1}), 3u);
}

}  // namespace
}  // namespace kvstow
