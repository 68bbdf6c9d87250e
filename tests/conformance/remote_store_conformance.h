// What every RemoteStore promises, run on each implementation:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, RemoteStoreConformance,
//                            testing::Values(RemoteStoreCase{"memory", Open}));
//
// `open` gives a store that may hold values already; each test has names of its own. An open that
// gives null skips the test: it has said why.
#ifndef KVSTOW_TESTS_CONFORMANCE_REMOTE_STORE_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_REMOTE_STORE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/remote/remote_store.h"
#include "tests/service/remote/blocking_remote.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {

struct RemoteStoreCase {
  std::string name;
  std::function<std::shared_ptr<RemoteStore>()> open;
  friend std::ostream& operator<<(std::ostream& out, const RemoteStoreCase& c) {
    return out << c.name;
  }
};

class RemoteStoreConformance : public testing::TestWithParam<RemoteStoreCase> {
 protected:
  void SetUp() override {
    store_ = GetParam().open();
    if (store_ == nullptr) GTEST_SKIP() << "there is no such store here";
    calls_ = std::make_unique<BlockingRemote>(*store_);
    ASSERT_FALSE(store_->name().empty());
  }

  // A name of this test alone.
  static std::string Name(absl::string_view suffix) {
    return absl::StrCat(testing::UnitTest::GetInstance()->current_test_info()->name(), ":", suffix);
  }
  // Bytes that look random and differ with the seed.
  static std::string Bytes(size_t size, uint64_t seed) {
    std::string out(size, '\0');
    uint64_t x = seed * 0x9E3779B97F4A7C15 + 1;
    for (char& c : out) {
      x = x * 6364136223846793005 + 1442695040888963407;
      c = static_cast<char>(x >> 56);
    }
    return out;
  }
  // True when the store holds nothing by nature, which is then all that there is to check.
  bool HoldsNothing() {
    if (store_->holds_values()) return false;
    const std::string name = Name("x");
    EXPECT_THAT(calls_->PutText(name, "text"), HasCode(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(calls_->GetText(name).status(), HasCode(absl::StatusCode::kNotFound));
    EXPECT_THAT(calls_->Exists({name})[0], HasCode(absl::StatusCode::kNotFound));
    EXPECT_OK(calls_->Erase({name})[0]);
    return true;
  }

  std::shared_ptr<RemoteStore> store_;
  std::unique_ptr<BlockingRemote> calls_;
};

TEST_P(RemoteStoreConformance, GivesBackTheBytesOfEverySize) {
  if (HoldsNothing()) return;
  for (const size_t size : {0, 1, 2, 15, 4096, 65535, 65536, 65537, (1 << 20) + 1, 3 << 20}) {
    const std::string name = Name(absl::StrCat(size)), bytes = Bytes(size, size);
    ASSERT_OK(calls_->PutText(name, bytes));
    const auto got = calls_->GetText(name);
    ASSERT_OK(got.status());
    EXPECT_TRUE(*got == bytes) << size;
  }
}

TEST_P(RemoteStoreConformance, TakesAValueInParts) {
  if (HoldsNothing()) return;
  const std::string bytes = Bytes(300'000, 7);
  RemoteValue value{.name = Name("parts")};
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    n = std::min<size_t>(at / 3 + 1, bytes.size() - at);
    value.parts.push_back(SharedBytes::Take(bytes.substr(at, n)));
    value.parts.push_back(SharedBytes());
  }
  ASSERT_OK(calls_->Put({value, {.name = Name("none")}})[0]);
  const auto got = calls_->GetText(value.name);
  ASSERT_OK(got.status());
  EXPECT_TRUE(*got == bytes);
  const auto none = calls_->GetText(Name("none"));
  ASSERT_OK(none.status());
  EXPECT_EQ(*none, "");
}

TEST_P(RemoteStoreConformance, TakesNamesOfAnyBytes) {
  if (HoldsNothing()) return;
  const std::vector<std::string> names = {Name(std::string("\0\r\n$5\r\n", 8)),
                                          Name("{tag}a"),
                                          Name("{tag}b"),
                                          Name("{}"),
                                          Name("{"),
                                          Name("}{"),
                                          Name("\xff"),
                                          Name("with space")};
  for (const std::string& name : names) ASSERT_OK(calls_->PutText(name, name + "!"));
  const auto values = calls_->Get(names);
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_OK(values[i].status());
    const std::string text(reinterpret_cast<const char*>(values[i]->data()), values[i]->size());
    EXPECT_EQ(text, names[i] + "!");
  }
}

TEST_P(RemoteStoreConformance, AnswersEachNameInItsPlace) {
  if (HoldsNothing()) return;
  std::vector<RemoteValue> values;
  std::vector<std::string> names;
  for (int i = 0; i < 60; ++i) {
    names.push_back(Name(absl::StrCat(i)));
    if (i % 3 != 0) {
      values.push_back({names.back(), {SharedBytes::Take(absl::StrCat("value ", i))}});
    }
  }
  for (const absl::Status& status : calls_->Put(values)) ASSERT_OK(status);
  names.push_back(names[1]);  // a name may come twice
  const auto got = calls_->Get(names);
  const auto there = calls_->Exists(names);
  ASSERT_EQ(got.size(), names.size());
  ASSERT_EQ(there.size(), names.size());
  for (int i = 0; i < 60; ++i) {
    if (i % 3 == 0) {
      EXPECT_THAT(got[i].status(), HasCode(absl::StatusCode::kNotFound)) << i;
      EXPECT_THAT(there[i], HasCode(absl::StatusCode::kNotFound)) << i;
      continue;
    }
    ASSERT_OK(got[i].status()) << i;
    ASSERT_OK(there[i]) << i;
    const std::string text(reinterpret_cast<const char*>(got[i]->data()), got[i]->size());
    EXPECT_EQ(text, absl::StrCat("value ", i));
  }
  EXPECT_OK(got[60].status());
}

TEST_P(RemoteStoreConformance, ALaterValueReplacesAnEarlierOne) {
  if (HoldsNothing()) return;
  ASSERT_OK(calls_->PutText(Name("x"), "one"));
  ASSERT_OK(calls_->PutText(Name("x"), "another"));
  const auto got = calls_->GetText(Name("x"));
  ASSERT_OK(got.status());
  EXPECT_EQ(*got, "another");
}

TEST_P(RemoteStoreConformance, ErasesOnlyWhatItIsTold) {
  if (HoldsNothing()) return;
  ASSERT_OK(calls_->PutText(Name("a"), "a"));
  ASSERT_OK(calls_->PutText(Name("b"), "b"));
  for (const absl::Status& s : calls_->Erase({Name("a"), Name("never")})) EXPECT_OK(s);
  EXPECT_THAT(calls_->GetText(Name("a")).status(), HasCode(absl::StatusCode::kNotFound));
  EXPECT_OK(calls_->GetText(Name("b")).status());
}

TEST_P(RemoteStoreConformance, AReaderKeepsItsBytes) {
  if (HoldsNothing()) return;
  const std::string bytes = Bytes(100'000, 3);
  ASSERT_OK(calls_->PutText(Name("x"), bytes));
  const auto held = std::move(calls_->Get({Name("x")})[0]);
  ASSERT_OK(held.status());
  ASSERT_OK(calls_->PutText(Name("x"), Bytes(100'000, 4)));
  ASSERT_OK(calls_->Erase({Name("x")})[0]);
  calls_.reset();
  store_.reset();
  EXPECT_TRUE(std::equal(held->span().begin(), held->span().end(),
                         reinterpret_cast<const uint8_t*>(bytes.data())));
}

TEST_P(RemoteStoreConformance, AValueWithATimeToLiveIsThereFirst) {
  if (HoldsNothing()) return;
  ASSERT_OK(calls_->PutText(Name("x"), "text", std::chrono::hours(1)));
  EXPECT_OK(calls_->GetText(Name("x")).status());
}

TEST_P(RemoteStoreConformance, EmptyListsAreFine) {
  EXPECT_TRUE(calls_->Put({}).empty());
  EXPECT_TRUE(calls_->Get({}).empty());
  EXPECT_TRUE(calls_->Exists({}).empty());
  EXPECT_TRUE(calls_->Erase({}).empty());
}

TEST_P(RemoteStoreConformance, ADoneMayCallTheStoreAgain) {
  std::promise<absl::StatusCode> promise;
  const Time deadline = Clock::Real().Now() + std::chrono::seconds(10);
  store_->Exists({Name("x")}, deadline, [&](std::vector<absl::Status>) {
    store_->Get({Name("x")}, deadline,
                [&](auto got) { promise.set_value(got[0].status().code()); });
  });
  EXPECT_EQ(promise.get_future().get(), absl::StatusCode::kNotFound);
}

TEST_P(RemoteStoreConformance, CountsWhatItDoes) {
  if (HoldsNothing()) return;
  const RemoteStore::Counters before = store_->counters();
  ASSERT_OK(calls_->PutText(Name("x"), std::string(1000, 'x')));
  ASSERT_OK(calls_->GetText(Name("x")).status());
  EXPECT_THAT(calls_->GetText(Name("y")).status(), HasCode(absl::StatusCode::kNotFound));
  const RemoteStore::Counters after = store_->counters();
  EXPECT_GE(after.commands - before.commands, 3u);
  EXPECT_GE(after.failed - before.failed, 1u);
  EXPECT_EQ(after.bytes_out - before.bytes_out, 1000u);
  EXPECT_EQ(after.bytes_in - before.bytes_in, 1000u);
  EXPECT_GE(after.nodes, 1u);
  EXPECT_GE(after.connected, 1u);
}

TEST_P(RemoteStoreConformance, ManyThreadsAtOnce) {
  if (HoldsNothing()) return;
  constexpr int kThreads = 4, kRounds = 25;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const std::string name = Name(absl::StrCat(t, "/", round));
        const std::string bytes = Bytes(500 + round * 1000, t * kRounds + round);
        wrong += calls_->PutText(name, bytes).ok() ? 0 : 1;
        const auto got = calls_->GetText(name);
        wrong += got.ok() && *got == bytes ? 0 : 1;
        if (round % 2 == 0) wrong += calls_->Erase({name})[0].ok() ? 0 : 1;
        wrong += calls_->Exists({name})[0].ok() == (round % 2 != 0) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_REMOTE_STORE_CONFORMANCE_H_
