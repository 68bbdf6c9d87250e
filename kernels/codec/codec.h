// A codec: a recipe bound to a KvSpec, ready to encode raw pages. make_codec.h makes one;
// decode_page.h decodes what any of them encoded.
//
//   KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe("int8"));
//   KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<const Codec> codec, MakeCodec(recipe, spec));
//   KVSTOW_ASSIGN_OR_RETURN(EncodedPage page,
//                           codec->Encode({.raw = bytes, .tokens = 256, .key = key}));
//   KVSTOW_RETURN_IF_ERROR(DecodePage(page.header, segments, out));
//
// A Codec is immutable and keeps no state: thread-safe. Encoding is deterministic: the same page
// gives the same bytes on every thread, in every batch and on every SIMD target. A lossy recipe
// keeps a page exactly (header.fell_back) when a value is NaN, Inf or beyond what fp16 scales hold.
// Denormals, constants and one-token pages are ordinary values.
//
// Errors: INVALID_ARGUMENT for a page of the wrong size or a bad position.
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
  // Decodes to the very bytes that were put.
  virtual bool exact() const = 0;
  // Levels of a page, >= 1.
  virtual uint32_t levels() const = 0;
  virtual absl::StatusOr<EncodedPage> Encode(const PageToEncode& page) const = 0;
};

// Of codecs that keep the very bytes in runs of layers: bytes of such a run of a page of so many
// tokens (the last may have fewer); 0 of those that code them.
size_t KeptRunBytes(const Codec& codec, uint32_t tokens);

// The header of a page that `codec` codes, without its segments and its calibration.
PageHeader NewPageHeader(const Codec& codec, const PageToEncode& page);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_CODEC_H_
