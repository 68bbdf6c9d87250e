// The order in which a stream of the plane coder (plane_coder.h) codes tokens that have energy
// classes.
//
// The tokens of a stream come by class, the least first. Tokens of one class come as they follow
// each other in the page. So the kRansLanes tokens of a step are alike, and one row of tables
// serves them all: that of the coefficient, moved by the mean of their classes.
//
// A *place* is where a token stands in this order; tokens of a stream have places of that stream.
//
//   const PlaneOrder order = OrderByClass(energies, tokens_per_stream);
//   order.tokens[p];               // the token at place p
//   order.shifts[p / kRansLanes];  // what is added to the rows of its coefficients
//
// A value; functions are thread-safe.
#ifndef KVSTOW_KERNELS_ENTROPY_PLANE_ORDER_H_
#define KVSTOW_KERNELS_ENTROPY_PLANE_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"

namespace kvstow {

// Returns the distance from a coefficient's first token to the next coefficient's.
inline size_t PlaneStride(size_t tokens) {
  return (tokens + kRansLanes - 1) / kRansLanes * kRansLanes;
}

// Returns what is added to the rows of `tokens` tokens, in quarter octaves, whose energy classes
// sum up to `classes`: 2 for each class above the middle one, halves upwards.
constexpr int ClassShift(uint32_t classes, uint32_t tokens) {
  return static_cast<int>((4 * classes + tokens) / (2 * tokens)) - kPlaneEnergies;
}

struct PlaneOrder {
  std::vector<uint32_t> tokens;  // of each place
  std::vector<int8_t> shifts;    // of each kRansLanes places
};

// `energies` has the class of each token, below kPlaneEnergies. `tokens_per_stream` is a multiple
// of kRansLanes.
PlaneOrder OrderByClass(std::span<const uint8_t> energies, uint32_t tokens_per_stream);

// Returns rows of a value for each token, [rows, PlaneStride(tokens)], as rows of a value for each
// place; 0 behind the last.
template <typename T>
std::vector<T> InOrder(const PlaneOrder& order, std::span<const T> rows) {
  std::vector<T> out(rows.size());
  const size_t stride = PlaneStride(order.tokens.size());
  for (size_t row = 0; row < rows.size(); row += stride) {
    for (size_t p = 0; p < order.tokens.size(); ++p) out[row + p] = rows[row + order.tokens[p]];
  }
  return out;
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_PLANE_ORDER_H_
