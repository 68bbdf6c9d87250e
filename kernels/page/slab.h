// Slabs: the unit of transforms and quantizers.
#ifndef KVSTOW_KERNELS_PAGE_SLAB_H_
#define KVSTOW_KERNELS_PAGE_SLAB_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page/page.h"

namespace kvstow {

// K or V of one layer of one page, as floats [tokens, heads, dim], row-major. All are at least 1.
struct SlabShape {
  Part part = Part::kK;
  uint32_t tokens = 0, heads = 0, dim = 0;
  size_t vectors() const { return size_t{tokens} * heads; }
  size_t values() const { return vectors() * dim; }
};

// Consecutive tokens of a slab. A whole slab is a tile as well.
struct SlabTile {
  SlabTile(const SlabShape& whole) : slab(whole), tokens(whole.tokens) {}  // NOLINT: is one
  SlabTile(const SlabShape& of, uint32_t first, uint32_t count)
      : slab(of), first_token(first), tokens(count) {}

  SlabShape slab;
  uint32_t first_token = 0, tokens = 0;

  // Returns the shape of the tile as a slab of its own.
  SlabShape shape() const { return {slab.part, tokens, slab.heads, slab.dim}; }
  size_t vectors() const { return size_t{tokens} * slab.heads; }
  size_t values() const { return vectors() * slab.dim; }
  size_t first_vector() const { return size_t{first_token} * slab.heads; }
  size_t first_value() const { return first_vector() * slab.dim; }
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_SLAB_H_
