// Quantizers made of quantizers: a recipe's ops, put together.
//
//   chain     transforms, then a quantizer: one quantizer of values as they came
//   parts     one quantizer for K, another for V
//   residual  a second quantizer codes what the first leaves; its levels follow the first's
//   merge     a quantizer sees several heads as one of as many more channels
//
// With these a published method is a line of text: QJL is `k|outliers(...)|signs(rows=16)|rest|
// signs(rows=2)|v|affine(bits=2,group=32)`. compose.h reads such lines; split.h has those that cut
// a slab in two.
//
// Body of a level: the side parts of transforms and splits (level 0 only), then that level's bodies
// of the quantizers that it is made of, in the order of the recipe. A quantizer with fewer levels
// than its neighbour has empty bodies of the rest.
//
// A quantizer that this makes owns its parts, is immutable and thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_COMBINE_H_
#define KVSTOW_KERNELS_QUANTIZE_COMBINE_H_

#include <memory>
#include <vector>

#include "kernels/quantize/quantizer.h"
#include "kernels/transform/transform.h"

namespace kvstow {

std::unique_ptr<Quantizer> MakeChain(std::vector<std::unique_ptr<Transform>> transforms,
                                     std::unique_ptr<Quantizer> quantizer);
std::unique_ptr<Quantizer> MakeParts(std::unique_ptr<Quantizer> k, std::unique_ptr<Quantizer> v);
std::unique_ptr<Quantizer> MakeResidual(std::unique_ptr<Quantizer> first,
                                        std::unique_ptr<Quantizer> second);

// merge(heads)|...: 2..64 heads (4) as one vector, so that a rotation or a scale covers them all
// (RotateKV, arXiv 2501.16383, rotates 4 together). As many of them as divide the slab's heads and
// make no more than kMaxHeadDim channels; values stay where they are.
absl::StatusOr<std::unique_ptr<Quantizer>> MakeMerge(const OpArguments& arguments,
                                                     std::unique_ptr<Quantizer> quantizer);
// How the table of ops makes one such.
using MakeWrap = absl::StatusOr<std::unique_ptr<Quantizer>> (*)(const OpArguments&,
                                                                std::unique_ptr<Quantizer>);

// For quantizers made of others: one of them with the shape of its values and, level by level,
// where its bodies are. A shape without values has no bytes and is not coded.
struct SubSlab {
  const Quantizer* quantizer;
  SlabShape shape;

  bool empty() const { return shape.values() == 0; }
  size_t LevelBytes(uint32_t level) const {
    return empty() || level >= quantizer->levels() ? 0 : quantizer->LevelBytes(shape, level);
  }
  // Codes and moves `at` past the bodies. `at` has an entry for every level of the whole; decoding
  // may have fewer, but at least one.
  bool Encode(const float* values, std::vector<uint8_t*>& at) const;
  bool Decode(float* values, std::vector<const uint8_t*>& at) const;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_COMBINE_H_
