// RemoteKeys: servers agree on a tenant's key by one value in a store that others write too.
#include "service/remote/remote_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "tests/service/remote/blocking_remote.h"
#include "tests/service/remote/memory_remote_store.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Line(uint8_t byte) {
  return absl::StrCat(HexOf(std::vector<uint8_t>(kAeadKeyBytes, byte)), "\n");
}

// One server's view. Its master keys are those of the given bytes, the first of which wraps.
class OneServer {
 public:
  OneServer(RemoteStore& store, const std::vector<uint8_t>& masters)
      : masters_(MasterKeys::Open(Write(masters)).value()),
        keys_(
            "p", store, masters_, [this](const std::string& tenant) { renewed_.push_back(tenant); },
            counters_) {}

  RemoteKeys& keys() { return keys_; }
  absl::StatusOr<RemoteKeyPtr> Find(RemoteKeys::Use use, const std::string& tenant = "t") {
    return KeyOf(keys_, tenant, use, Clock::Real().Now() + std::chrono::seconds(5));
  }
  StatusCode Code(RemoteKeys::Use use) { return Find(use).status().code(); }
  // The id of the key that is used to write; 0 = none.
  uint64_t Id() {
    const auto key = Find(RemoteKeys::Use::kWrite);
    return key.ok() ? (*key)->id() : 0;
  }
  // What the thread does that looks.
  std::vector<std::string> Round() {
    std::vector<std::string> turning = keys_.Look();
    for (const std::string& tenant : turning) keys_.Turn(tenant);
    return turning;
  }
  void Give(const std::vector<uint8_t>& masters) {
    Write(masters);
    ASSERT_TRUE(masters_->Reload().ok());
    keys_.Watch({});
  }
  const std::vector<std::string>& renewed() const { return renewed_; }
  uint64_t damaged() const { return counters_.damaged_values; }

 private:
  std::string Write(const std::vector<uint8_t>& masters) {
    const std::string path = dir_.path() + "/master.key";
    std::ofstream out(path);
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    for (const uint8_t byte : masters) out << Line(byte);
    return "file:" + path;
  }

  TempDir dir_;
  RemoteCounters counters_;
  std::vector<std::string> renewed_;
  const std::shared_ptr<MasterKeys> masters_;
  RemoteKeys keys_;
};

class RemoteKeysTest : public ::testing::Test {
 protected:
  static std::string Name(const std::string& tenant = "t") {
    return KeyName("p", KeyTagOf(tenant));
  }
  // The record as it is there.
  KeyRecord There() {
    return ParseKeyRecord("t", SharedBytes::Take(store_.Peek(Name()).value_or(""))).value();
  }
  void PutThere(const std::string& value) {
    BlockingRemote(store_).PutText(Name(), value).IgnoreError();
  }

  MemoryRemoteStore store_;
  OneServer a_{store_, {1}};
  OneServer b_{store_, {1}};
};

TEST_F(RemoteKeysTest, WhoWritesMakesAKeyAndTheOthersFindIt) {
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kRead), StatusCode::kNotFound);
  EXPECT_THAT(store_.names(), IsEmpty()) << "who only reads makes nothing";
  const uint64_t id = a_.Id();
  EXPECT_NE(id, 0u);
  EXPECT_EQ(a_.Id(), id);
  EXPECT_EQ(b_.Id(), id);
  const auto key = b_.Find(RemoteKeys::Use::kRead);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(HexOf((*key)->secret().bytes()), HexOf((*a_.keys().Known("t"))->secret().bytes()));
  EXPECT_THAT(store_.names(), ElementsAre(Name()));
  EXPECT_THAT(a_.Round(), IsEmpty());
  EXPECT_NE((*a_.Find(RemoteKeys::Use::kWrite, "u"))->id(), id) << "each tenant has its own";
  EXPECT_THAT(a_.renewed(), ElementsAre("t", "u"));
  EXPECT_THAT(b_.renewed(), ElementsAre("t")) << "it saw that there was none";
  EXPECT_EQ(a_.keys().counts().keys, 2u);
}

TEST_F(RemoteKeysTest, AReaderThatSawNoneIsToldAtTheNextLook) {
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kRead), StatusCode::kNotFound);
  const uint64_t before = store_.counters().commands;
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kRead), StatusCode::kNotFound);
  EXPECT_EQ(store_.counters().commands, before) << "the look asks for it";
  const uint64_t id = a_.Id();
  b_.Round();
  EXPECT_EQ((*b_.Find(RemoteKeys::Use::kRead))->id(), id);
}

TEST_F(RemoteKeysTest, AReaderThatCannotWaitForTheLookAsks) {
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kReadNow), StatusCode::kNotFound);
  EXPECT_THAT(store_.names(), IsEmpty());
  const uint64_t id = a_.Id();
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kRead), StatusCode::kNotFound);
  EXPECT_EQ((*b_.Find(RemoteKeys::Use::kReadNow))->id(), id);
}

TEST_F(RemoteKeysTest, OfTwoThatMakeOneAtOnceTheLaterWins) {
  store_.Hold();
  std::vector<uint64_t> ids;
  const auto note = [&](absl::StatusOr<RemoteKeyPtr> key) { ids.push_back((*key)->id()); };
  const Time deadline = Clock::Real().Now() + std::chrono::seconds(30);
  a_.keys().Find("t", RemoteKeys::Use::kWrite, deadline, note);
  b_.keys().Find("t", RemoteKeys::Use::kWrite, deadline, note);
  while (store_.held() > 0) store_.Release(), store_.Hold();
  store_.Release();
  ASSERT_EQ(ids.size(), 2u);
  a_.Round();
  b_.Round();
  EXPECT_EQ(a_.Id(), There().id);
  EXPECT_EQ(b_.Id(), There().id);
}

TEST_F(RemoteKeysTest, ARecordThatWasWrittenOverTurnsTheKey) {
  const uint64_t first = a_.Id();
  store_.DropAll();
  const uint64_t second = b_.Id();
  EXPECT_EQ(a_.Id(), first) << "until it looks";
  EXPECT_THAT(a_.keys().Look(), ElementsAre("t"));
  EXPECT_EQ(a_.Id(), first) << "until it turns";
  a_.keys().Turn("t");
  EXPECT_EQ(a_.Id(), second);
  EXPECT_THAT(a_.renewed(), ElementsAre("t", "t"));
}

TEST_F(RemoteKeysTest, WhatIsForgottenThereIsMadeAnewByWhoWrites) {
  const uint64_t first = a_.Id();
  EXPECT_EQ(b_.Id(), first);
  store_.DropAll();
  EXPECT_THAT(a_.Round(), ElementsAre("t"));
  EXPECT_EQ(a_.Code(RemoteKeys::Use::kRead), StatusCode::kNotFound);
  EXPECT_FALSE(a_.keys().Known("t").has_value());
  EXPECT_NE(a_.Id(), first);
  EXPECT_THAT(b_.Round(), ElementsAre("t"));
  EXPECT_EQ(b_.Id(), a_.Id());
}

TEST_F(RemoteKeysTest, AnotherFleetsRecordIsLockedAndStays) {
  OneServer theirs(store_, {9});
  const uint64_t id = theirs.Id();
  const std::string value = *store_.Peek(Name());
  for (const auto use : {RemoteKeys::Use::kRead, RemoteKeys::Use::kWrite}) {
    EXPECT_EQ(a_.Code(use), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(a_.keys().Drop("t").code(), StatusCode::kFailedPrecondition);
  a_.Round();
  EXPECT_EQ(store_.Peek(Name()).value_or(""), value);
  EXPECT_EQ(a_.keys().counts().locked, 1u);
  EXPECT_EQ(a_.damaged(), 0u);
  EXPECT_EQ(theirs.Id(), id);
  a_.Give({1, 9});
  a_.Round();
  EXPECT_EQ(a_.Id(), id) << "with their master key it opens";
  EXPECT_EQ(a_.keys().counts().locked, 0u);
}

TEST_F(RemoteKeysTest, ADamagedRecordIsMadeAnew) {
  const uint64_t first = a_.Id();
  ASSERT_TRUE(store_.Corrupt(Name(), 50));
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kRead), StatusCode::kNotFound);
  b_.Round();
  EXPECT_EQ(b_.damaged(), 1u) << "counted once";
  const uint64_t second = b_.Id();
  EXPECT_NE(second, 0u);
  EXPECT_NE(second, first);
  a_.Round();
  EXPECT_EQ(a_.Id(), second);
  EXPECT_EQ(There().id, second);
}

TEST_F(RemoteKeysTest, ARecordOfAnotherVersionStays) {
  a_.Id();
  ASSERT_TRUE(store_.Corrupt(Name(), 4));
  const std::string value = store_.Peek(Name()).value_or("");
  Log().set_level(spdlog::level::warn);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(b_.Code(RemoteKeys::Use::kWrite), StatusCode::kFailedPrecondition);
  b_.Round();
  const std::string said = ::testing::internal::GetCapturedStderr();
  Log().set_level(spdlog::level::err);
  EXPECT_THAT(said, HasSubstr(Name()));
  EXPECT_THAT(said, HasSubstr("delete the value, if no newer kvstow writes there"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << "once: " << said;
  EXPECT_EQ(b_.keys().counts().locked, 1u);
  EXPECT_EQ(b_.keys().Drop("t").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_.Peek(Name()).value_or(""), value);
  EXPECT_EQ(b_.damaged(), 0u);
}

TEST_F(RemoteKeysTest, ADroppedKeyIsForgottenByAll) {
  const uint64_t first = a_.Id();
  EXPECT_EQ(b_.Id(), first);
  EXPECT_TRUE(a_.keys().Drop("t").ok());
  EXPECT_FALSE(store_.Peek(Name()).has_value());
  a_.Round();
  b_.Round();
  EXPECT_FALSE(a_.keys().Known("t").has_value());
  EXPECT_FALSE(b_.keys().Known("t").has_value());
  const uint64_t second = b_.Id();
  EXPECT_NE(second, first) << "a new life";
  a_.Round();
  EXPECT_EQ(a_.Id(), second);
  EXPECT_TRUE(a_.keys().Drop("never-there").ok());
}

TEST_F(RemoteKeysTest, AnOldRecordThatComesBackIsErasedAgain) {
  const uint64_t first = a_.Id();
  const std::string old = *store_.Peek(Name());
  EXPECT_TRUE(a_.keys().Drop("t").ok());
  a_.Round();
  PutThere(old);  // as a server does that wrapped it anew meanwhile
  EXPECT_NE(a_.Id(), first);
  EXPECT_NE(There().id, first);
  PutThere(old);
  a_.Round();
  EXPECT_FALSE(store_.Peek(Name()).has_value());
}

TEST_F(RemoteKeysTest, ADropIsTriedAgainUntilTheStoreAnswers) {
  a_.Id();
  store_.FailAll(absl::UnavailableError("down"));
  EXPECT_EQ(a_.keys().Drop("t").code(), StatusCode::kUnavailable);
  a_.keys().Turn("t");
  EXPECT_FALSE(a_.keys().Known("t").has_value()) << "here it is forgotten at once";
  store_.FailAll(absl::OkStatus());
  a_.Round();
  EXPECT_FALSE(store_.Peek(Name()).has_value());
  // The same by a server that never read the record.
  b_.Id();
  store_.FailAll(absl::UnavailableError("down"));
  OneServer c(store_, {1});
  EXPECT_EQ(c.keys().Drop("t").code(), StatusCode::kUnavailable);
  store_.FailAll(absl::OkStatus());
  c.Round();
  EXPECT_FALSE(store_.Peek(Name()).has_value());
  EXPECT_NE(c.Id(), 0u);
  c.Round();
  EXPECT_EQ(c.Id(), There().id) << "the new key stays";
}

TEST_F(RemoteKeysTest, ANewMasterKeyWrapsTheSameKey) {
  const uint64_t id = a_.Id();
  EXPECT_EQ(b_.Id(), id);
  const uint64_t old_master = There().master;
  a_.Give({2, 1});
  EXPECT_THAT(a_.Round(), IsEmpty());
  EXPECT_NE(There().master, old_master);
  EXPECT_EQ(There().id, id);
  EXPECT_THAT(b_.Round(), IsEmpty()) << "it knows the key, whatever wraps it";
  EXPECT_EQ(b_.Id(), id);
  a_.Give({2});
  a_.Round();
  EXPECT_EQ(a_.Id(), id);
  OneServer with_new(store_, {2}), with_old(store_, {1});
  EXPECT_EQ(with_new.Id(), id);
  EXPECT_EQ(with_old.Code(RemoteKeys::Use::kRead), StatusCode::kFailedPrecondition);
}

TEST_F(RemoteKeysTest, ServersWithTheirMasterKeysInAnotherOrderDoNotWrapForEver) {
  const uint64_t id = a_.Id();
  OneServer c(store_, {2, 1});
  EXPECT_EQ(c.Id(), id);
  for (int i = 0; i < 3; ++i) c.Round(), a_.Round();
  const std::string value = *store_.Peek(Name());
  for (int i = 0; i < 3; ++i) c.Round(), a_.Round();
  EXPECT_EQ(*store_.Peek(Name()), value);
}

TEST_F(RemoteKeysTest, ATenantThatIsWatchedIsWrappedAnewThoughNobodyUsesIt) {
  a_.Id();
  const uint64_t old_master = There().master;
  OneServer c(store_, {2, 1});
  c.keys().Watch(std::vector<std::string>{"t"});
  c.Round();
  EXPECT_NE(There().master, old_master);
}

TEST_F(RemoteKeysTest, WithoutAMasterKeyNothingIsMade) {
  OneServer none(store_, {});
  EXPECT_EQ(none.Code(RemoteKeys::Use::kWrite), StatusCode::kUnavailable);
  EXPECT_THAT(store_.names(), IsEmpty());
  none.Give({1});
  EXPECT_EQ(none.Id(), a_.Id());
}

TEST_F(RemoteKeysTest, AStoreThatIsDownIsAskedAgain) {
  store_.FailAll(absl::UnavailableError("down"));
  EXPECT_EQ(a_.Code(RemoteKeys::Use::kRead), StatusCode::kUnavailable);
  EXPECT_EQ(a_.Code(RemoteKeys::Use::kWrite), StatusCode::kUnavailable);
  store_.FailAll(absl::OkStatus());
  const uint64_t id = a_.Id();
  EXPECT_NE(id, 0u);
  store_.FailAll(absl::UnavailableError("down"));
  EXPECT_THAT(a_.Round(), IsEmpty()) << "no answer is no missing record";
  EXPECT_EQ(a_.Id(), id);
}

TEST_F(RemoteKeysTest, InClearEveryKeyIsNull) {
  RemoteCounters counters;
  RemoteKeys clear("p", store_, nullptr, nullptr, counters);
  EXPECT_FALSE(clear.seals());
  const auto key = KeyOf(clear, "t", RemoteKeys::Use::kWrite, Clock::Real().Now());
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(*key, nullptr);
  EXPECT_EQ(clear.Known("t"), std::optional<RemoteKeyPtr>(RemoteKeyPtr()));
  EXPECT_TRUE(clear.Drop("t").ok());
  EXPECT_THAT(store_.names(), IsEmpty());
}

}  // namespace
}  // namespace kvstow
