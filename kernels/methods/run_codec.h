// A run codec: one recipe on one run of layers of one page. What a codec does to a page is this,
// run after run; all else (header, digests, falling back, which layers are wanted) is
// make_codec.h's and decode_page.h's.
//
// A RunCodec is immutable: thread-safe. Encode is a pure function of its arguments and of the
// recipe; the same run gives the same bytes on every SIMD target. run_codecs.h
// makes the one of a recipe.
#ifndef KVSTOW_KERNELS_METHODS_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_RUN_CODEC_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kernels/page/page.h"

namespace kvstow {

struct Selection;

// Which part of which page.
struct Run {
  LayerRange layers;  // count >= 1
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  // Which tokens of the page stay, for recipes that drop some; null when encoding any other, and
  // when decoding.
  const Selection* kept = nullptr;
  // log2 of each token's step over the usual one, for codecs that take classes of steps; empty
  // when nothing is known, and when decoding.
  std::span<const float> log_steps = {};
  // Keeps the raw bytes alive, when encoding may reference instead of copy them; else null.
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
  // `raw` holds the run's layers as a page does. All levels, base first. OUT_OF_RANGE when the
  // values cannot be coded (NaN, Inf, beyond fp16): the page is then kept exactly.
  virtual absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                           std::span<const uint8_t> raw) const = 0;
  // From the bodies of the first bodies.size() >= 1 levels, the layers `wanted` (numbered as in the
  // page, within the run) into `raw`, whose size is theirs. Sizes of bodies are checked before
  // anything is read or allocated. DATA_LOSS says what does not fit.
  virtual absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies,
                              LayerRange wanted, std::span<uint8_t> raw) const = 0;
  // What Decode would write, as a part of a body: of codecs that keep the very bytes. Errors are
  // Decode's.
  virtual absl::StatusOr<std::optional<SharedBytes>> InPlace(
      const Run& /*run*/, std::span<const SharedBytes> /*bodies*/, LayerRange /*wanted*/) const {
    return std::nullopt;
  }
  // What Decode writes for these tokens alone, laid out as a page of so many, without decoding all.
  // UNIMPLEMENTED, as here, when it would have to: DecodePage then does so and copies.
  virtual absl::Status DecodeTokens(const Run& /*run*/, std::span<const SharedBytes> /*bodies*/,
                                    LayerRange /*wanted*/, TokenRange /*tokens*/,
                                    std::span<uint8_t> /*raw*/) const {
    return absl::UnimplementedError("all tokens are decoded together");
  }
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_RUN_CODEC_H_
