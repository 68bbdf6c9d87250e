// Who may send a blob, who waits, and who gives way.
#include "service/api/sending_places.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace kvstow::testing {
namespace {

const Caller kOperator{.identity = "operator"};
const Caller kA{.identity = "a.worker", .tenant = "a", .role = Role::kWorker};
const Caller kB{.identity = "b.worker", .tenant = "b", .role = Role::kWorker};

class Sender final : public SendingPlaces::Stream {
 public:
  bool GiveWay() override {
    if (whole) return false;
    gave_way = true;
    place.reset();
    return true;
  }
  std::optional<SendingPlaces::Place> place;
  bool whole = false;  // its blob
  bool gave_way = false;
};

class SendingPlacesTest : public ::testing::Test {
 protected:
  std::shared_ptr<Sender> Begin(const Caller& caller) {
    auto sender = std::make_shared<Sender>();
    sender->place = places_.Take(caller, sender);
    return sender;
  }
  ManualClock clock_;
  Calibrations calibrations_{""};
  SendingPlaces places_{calibrations_, clock_};
};

TEST_F(SendingPlacesTest, OnePlaceIsForOperators) {
  const auto a = Begin(kA);
  EXPECT_TRUE(a->place.has_value());
  EXPECT_FALSE(Begin(kB)->place.has_value());
  const auto first = Begin(kOperator);
  EXPECT_TRUE(first->place.has_value());
  EXPECT_FALSE(Begin(kOperator)->place.has_value());
  a->place.reset();
  EXPECT_TRUE(Begin(kOperator)->place.has_value()) << "operators may have all of them";
  EXPECT_TRUE(Begin(kB)->place.has_value());
}

TEST_F(SendingPlacesTest, OneThatIsSilentGivesWay) {
  const auto silent = Begin(kA);
  clock_.Advance(SendingPlaces::kGrace - std::chrono::nanoseconds(1));
  EXPECT_FALSE(Begin(kB)->place.has_value());
  silent->place->Moved();
  clock_.Advance(SendingPlaces::kGrace - std::chrono::nanoseconds(1));
  EXPECT_FALSE(Begin(kB)->place.has_value());
  clock_.Advance(std::chrono::nanoseconds(1));
  const auto next = Begin(kB);
  EXPECT_TRUE(next->place.has_value());
  EXPECT_TRUE(silent->gave_way);
  EXPECT_FALSE(Begin(kA)->place.has_value()) << "the place is taken once more";
}

TEST_F(SendingPlacesTest, OneThatDripsGivesWayAfterItsTurn) {
  const auto drips = Begin(kA);
  constexpr Duration kStep = SendingPlaces::kGrace / 2;
  for (Duration past{}; past < SendingPlaces::kTurn; past += kStep) {
    EXPECT_FALSE(Begin(kB)->place.has_value());
    clock_.Advance(kStep);
    drips->place->Moved();
  }
  EXPECT_TRUE(Begin(kB)->place.has_value());
  EXPECT_TRUE(drips->gave_way);
}

TEST_F(SendingPlacesTest, OneWhoseBlobIsWholeKeepsItsPlace) {
  const auto whole = Begin(kA);
  whole->whole = true;
  clock_.Advance(SendingPlaces::kTurn);
  EXPECT_FALSE(Begin(kB)->place.has_value());
  const auto silent = Begin(kOperator);
  clock_.Advance(SendingPlaces::kGrace);
  EXPECT_TRUE(Begin(kOperator)->place.has_value());
  EXPECT_TRUE(silent->gave_way);
}

TEST_F(SendingPlacesTest, AnOperatorGivesWayToOperatorsAlone) {
  const auto first = Begin(kOperator), second = Begin(kOperator);
  clock_.Advance(SendingPlaces::kTurn);
  EXPECT_FALSE(Begin(kA)->place.has_value());
  EXPECT_TRUE(Begin(kOperator)->place.has_value());
  EXPECT_TRUE(first->gave_way);
  EXPECT_FALSE(second->gave_way);
}

TEST_F(SendingPlacesTest, WhatTheServerFetchesItselfCountsToo) {
  ASSERT_TRUE(calibrations_.BeginSending());
  const auto first = Begin(kOperator);
  EXPECT_TRUE(first->place.has_value());
  EXPECT_FALSE(Begin(kOperator)->place.has_value());
  calibrations_.EndSending();
  EXPECT_TRUE(Begin(kOperator)->place.has_value());
}

}  // namespace
}  // namespace kvstow::testing
