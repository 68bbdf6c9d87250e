// levels(b0,b1,..): an embedded uniform code for rotated data. A vector's values are cut into 2^b0
// cells; each further level cuts every cell again, so that it can be dropped without coding anew.
//
//   a = fp16(max |x|), q = clip(floor((x / a + 1) 2^(B-1)), 0, 2^B - 1), B = b0 + b1 + ..
//   level j holds bits of q: level 0 the b0 highest, level 1 the next b1, and so on
//   x' = a c_b(q's b leading bits), b = the bits that are there
//
// c_b(i) is where a Gaussian vector's values lie on average within the cell (below), so that every
// leading part decodes well. 1 to 8 bits in all. Scaling by the largest value leaves nothing beyond
// the last cell. Measured on Gaussian vectors of 64 channels: .136 at 2 bits, .0090 at 4
// (Lloyd-Max: .117 and .0095), 3.5e-5 at 8.
//
// Body of a slab: level 0 begins with a of all vectors (fp16); then, as in every level, the bits of
// all values, packed.
#ifndef KVSTOW_KERNELS_QUANTIZE_LEVELS_H_
#define KVSTOW_KERNELS_QUANTIZE_LEVELS_H_

#include <vector>

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeLevels(const OpArguments& arguments);

// c_b of all 2^b cells, from -1 to 1; b is 1..8. The model: a vector of 96 channels whose largest
// magnitude, 2.7 standard deviations, is one of its values, while the others are Gaussian, cut off
// there. Up to 4 bits all centroids are tabulated; beyond that, cells are narrow and their middle
// serves, except for the outermost, which holds the largest value itself.
std::vector<float> LevelCentroids(uint32_t bits);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_LEVELS_H_
