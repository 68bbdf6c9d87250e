// A run codec: one recipe on one run of layers of one page. A codec applies it to a page, run after
// run. make_codec.h and decode_page.h do all else (header, digests, falling back, which layers are
// wanted).
//
// A RunCodec is immutable: thread-safe. Encode is a pure function of its arguments and of the
// recipe. The same run gives the same bytes on every SIMD target, except for ops with dense
// products (joint, pca, predict, rotate, waterfill). run_codecs.h makes the run codec of a recipe.
#ifndef KVSTOW_KERNELS_METHODS_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_RUN_CODEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kernels/methods/page_guess.h"
#include "kernels/page/page.h"

namespace kvstow {

struct Selection;

// The part of a page that a run covers.
struct Run {
  LayerRange layers;  // count >= 1
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  // The tokens of the page that stay, for recipes that drop some. Other recipes do not read it.
  // Null when decoding.
  const Selection* kept = nullptr;
  // log2 of each token's step over the usual one, for codecs that take classes of steps. Empty when
  // nothing is known, and when decoding.
  std::span<const float> log_steps = {};
  // What comes on top of that, as tokens stand near the end of the page (calibration/page_end.h).
  // Empty where a report says all, and when decoding.
  std::span<const float> end_steps = {};
  // Which tokens these are (PageHeader::token_ids). Empty when none is known.
  std::span<const TokenId> token_ids = {};
  // How much the model feels each layer of the page (PageGuess). Empty when nothing is known, and
  // when decoding.
  std::span<const float> felt = {};
  // Keeps the raw bytes alive when encoding may reference them instead of copying; else null.
  std::shared_ptr<const void> raw_owner = nullptr;
};

struct EncodedLevel {
  SharedBytes body;
  double gain = 0;  // see SegmentInfo
};

class RunCodec {
 public:
  virtual ~RunCodec() = default;

  virtual bool exact() const = 0;
  virtual uint32_t levels() const = 0;
  // Returns what Run::token_ids and the page's header shall have, for a codec that foretells K and
  // V of tokens; else nothing. The page fits its spec.
  virtual std::vector<TokenId> TokenIds(const PageToEncode& /*page*/) const { return {}; }
  // Returns what Run::felt shall have, and Run::log_steps where nobody knows more, for a codec that
  // goes by it; else nothing. The page fits its spec.
  virtual PageGuess Guess(const PageToEncode& /*page*/) const { return {}; }
  // Returns all levels, base first. `raw` holds the run's layers as a page does. Fails with
  // OUT_OF_RANGE when the values cannot be coded (NaN, Inf, beyond fp16): the page is then kept
  // exactly.
  virtual absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                           std::span<const uint8_t> raw) const = 0;
  // Decodes the bodies of the first bodies.size() >= 1 levels. Writes the layers `wanted` (numbered
  // as in the page, within the run) into `raw`, whose size is theirs. Checks the sizes of bodies
  // before it reads or allocates anything. Fails with DATA_LOSS, which says what does not fit.
  virtual absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies,
                              LayerRange wanted, std::span<uint8_t> raw) const = 0;
  // Returns what Decode would write, as a part of a body, for a codec that keeps the very bytes;
  // else nothing. Errors are Decode's.
  virtual absl::StatusOr<std::optional<SharedBytes>> InPlace(
      const Run& /*run*/, std::span<const SharedBytes> /*bodies*/, LayerRange /*wanted*/) const {
    return std::nullopt;
  }
  // Writes what Decode writes for these tokens alone, laid out as a page of so many, without
  // decoding all. Fails with UNIMPLEMENTED, as here, when it would have to. DecodePage then decodes
  // all and copies.
  virtual absl::Status DecodeTokens(const Run& /*run*/, std::span<const SharedBytes> /*bodies*/,
                                    LayerRange /*wanted*/, TokenRange /*tokens*/,
                                    std::span<uint8_t> /*raw*/) const {
    return absl::UnimplementedError("all tokens are decoded together");
  }
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_RUN_CODEC_H_
