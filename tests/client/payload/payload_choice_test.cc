#include "client/payload/payload_choice.h"

#include <gtest/gtest.h>

namespace kvstow {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);

TEST(PayloadChoice, WhatIsWantedIsDone) {
  PayloadChoice raw(Payload::kRaw), encoded(Payload::kEncoded);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(raw.EncodedNext());
    EXPECT_TRUE(encoded.EncodedNext());
    raw.Took(true, 1000, kSecond);
    encoded.Took(false, 1000, kSecond);
  }
}

// How many of `batches` go encoded when the two ways have these speeds.
int Encoded(PayloadChoice& choice, int batches, uint64_t raw_speed, uint64_t encoded_speed) {
  int count = 0;
  for (int i = 0; i < batches; ++i) {
    const bool encoded = choice.EncodedNext();
    count += encoded ? 1 : 0;
    choice.Took(encoded, encoded ? encoded_speed : raw_speed, kSecond);
  }
  return count;
}

TEST(PayloadChoice, AutoTriesBothThenTakesTheFasterAndLooksAgain) {
  PayloadChoice choice(Payload::kAuto);
  EXPECT_FALSE(choice.EncodedNext());
  choice.Took(false, 500, kSecond);
  EXPECT_TRUE(choice.EncodedNext());
  choice.Took(true, 900, kSecond);
  EXPECT_EQ(Encoded(choice, 320, 500, 900), 310) << "one in 32 looks whether raw is faster now";
  EXPECT_LT(Encoded(choice, 640, 500, 100), 330) << "the link got faster than the codec";
  EXPECT_EQ(Encoded(choice, 320, 500, 100), 10);
}

TEST(PayloadChoice, ABatchThatBroughtNothingTellsNothing) {
  PayloadChoice choice(Payload::kAuto);
  choice.Took(false, 0, kSecond);
  choice.Took(false, 100, Duration(0));
  EXPECT_FALSE(choice.EncodedNext()) << "raw is still to be tried";
}

}  // namespace
}  // namespace kvstow
