// polar: blocks of 16 channels of a head vector as one radius and 15 angles (PolarQuant, arXiv
// 2502.02617). Meant for rotated vectors.
//
// Pairs of values become a radius and an angle, pairs of radii again, four times. A first angle
// lies anywhere in [0, 2 pi) and has the middles of 16 equal sectors. A later one lies in [0, pi /
// 2]; for Gaussian values its density is sin(2 t)^(2^(l-1) - 1) at level l, and it has the nearest
// of the four entries of the Lloyd-Max codebook of that law. Tables are constants of the format
// (tests/reference/codebooks.py derives them); angles are compared by tangents, so no library's
// arctangent matters. A last, shorter block of a vector is filled with zeros.
//
//   r = fp16(radius of the block), 4 bits a first angle, 2 bits a later one: 3.875 bits a value
//
// Body of a slab: the radii of all blocks (fp16), the first angles of all blocks (8 codes of 4 bits
// a block), then the others (7 codes of 2 bits a block: four of level 2, two of level 3, one of
// level 4); both bit-packed. A pair (x, y) has the angle of the point x to the right, y up.
#ifndef KVSTOW_KERNELS_QUANTIZE_POLAR_H_
#define KVSTOW_KERNELS_QUANTIZE_POLAR_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakePolar(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_POLAR_H_
