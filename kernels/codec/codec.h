// A codec: a recipe bound to a KvSpec, ready to encode raw pages. make_codec.h makes one.
// decode_page.h decodes the pages of any codec.
//
//   KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe("int8"));
//   KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<const Codec> codec, MakeCodec(recipe, spec));
//   KVSTOW_ASSIGN_OR_RETURN(EncodedPage page,
//                           codec->Encode({.raw = bytes, .tokens = 256, .key = key}));
//   KVSTOW_RETURN_IF_ERROR(DecodePage(page.header, segments, out));
//
// A Codec is immutable and keeps no state: thread-safe. Encoding is deterministic: the same page
// gives the same bytes on every thread and in every batch. The bytes are also the same on every
// SIMD target, except those of ops with dense products (joint, pca, predict, rotate, waterfill). A
// lossy recipe keeps a page exactly (header.fell_back) when a value is NaN, Inf or beyond the range
// of fp16 scales. Denormals, constants and one-token pages are ordinary values.
//
// Errors: INVALID_ARGUMENT for a page of the wrong size, a bad position or a key that is too long;
// and those of the recipe's policy (importance/policy.h).
#ifndef KVSTOW_KERNELS_CODEC_CODEC_H_
#define KVSTOW_KERNELS_CODEC_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

class Codec {
 public:
  virtual ~Codec() = default;

  virtual const Recipe& recipe() const = 0;
  virtual const KvSpec& spec() const = 0;
  // Returns whether pages decode to the very bytes that were put.
  virtual bool exact() const = 0;
  // Returns the number of levels of a page, >= 1.
  virtual uint32_t levels() const = 0;
  virtual absl::StatusOr<EncodedPage> Encode(const PageToEncode& page) const = 0;
};

// Returns the bytes of a run of layers in a page of so many tokens, for a codec that keeps the very
// bytes (the last run may have fewer). Returns 0 for a codec that codes them.
size_t ExactRunBytes(const Codec& codec, uint32_t tokens);

// Returns the header of a page that `codec` codes, without its segments and its calibration.
PageHeader NewPageHeader(const Codec& codec, const PageToEncode& page);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_CODEC_H_
