#include "kernels/entropy/plane_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvstow {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::vector<uint8_t> RandomClasses(size_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> classes(tokens);
  for (uint8_t& one : classes) one = static_cast<uint8_t>(random() % kPlaneEnergies);
  return classes;
}

TEST(PlaneOrder, TokensOfAStreamComeByClassAndThenAsInThePage) {
  const std::vector<uint8_t> classes = RandomClasses(150, 1);
  const PlaneOrder order = OrderByClass(classes, 64);
  for (const auto& [first, end] : {std::pair{0, 64}, {64, 128}, {128, 150}}) {
    std::vector<uint32_t> want;
    for (int t = first; t < end; ++t) want.push_back(static_cast<uint32_t>(t));
    std::ranges::stable_sort(want, {}, [&](uint32_t t) { return classes[t]; });
    const auto got = std::span(order.tokens).subspan(first, end - first);
    EXPECT_THAT(got, ElementsAreArray(want)) << "stream from " << first;
  }
}

TEST(PlaneOrder, AShiftIsTwoRowsForEachClassOfTheMean) {
  std::vector<uint8_t> classes(16, 8);
  classes.insert(classes.end(), 16, 15);
  classes.insert(classes.end(), 16, 0);
  classes.insert(classes.end(), {9, 9, 9, 8});  // 7/4 of the middle, rows of 3/2, upwards
  EXPECT_THAT(OrderByClass(classes, 16).shifts, ElementsAre(0, 14, -16, 2));
  // Within one stream the classes come first.
  EXPECT_THAT(OrderByClass(classes, 64).shifts, ElementsAre(-16, 0, 11, 14));
}

TEST(PlaneOrder, RowsGoIntoTheOrder) {
  const std::vector<uint8_t> classes = {9, 7, 8, 7};
  const PlaneOrder order = OrderByClass(classes, 16);
  EXPECT_THAT(order.tokens, ElementsAre(1, 3, 2, 0));
  std::vector<int> rows(2 * PlaneStride(4), -1);
  for (int t = 0; t < 4; ++t) rows[t] = t, rows[PlaneStride(4) + t] = 10 + t;
  const std::vector<int> sorted = InOrder<int>(order, rows);
  EXPECT_THAT(std::span(sorted).first(5), ElementsAre(1, 3, 2, 0, 0));
  EXPECT_THAT(std::span(sorted).subspan(PlaneStride(4), 5), ElementsAre(11, 13, 12, 10, 0));
}

TEST(PlaneOrder, NoTokensHaveNoPlaces) {
  const PlaneOrder order = OrderByClass({}, 64);
  EXPECT_TRUE(order.tokens.empty());
  EXPECT_TRUE(order.shifts.empty());
}

}  // namespace
}  // namespace kvstow
