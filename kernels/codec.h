// A codec: a recipe bound to a KvSpec, ready to encode raw pages and to decode encoded ones.
//
//   KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse("int8"));
//   KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<const Codec> codec, MakeCodec(recipe, spec));
//   KVSTOW_ASSIGN_OR_RETURN(EncodedPage page, codec->Encode({.raw = bytes, .tokens = 256, .key =
//   key})); KVSTOW_RETURN_IF_ERROR(DecodePage(page.header, segments, out));
//
// Thread-safe: a Codec is immutable, Encode and Decode keep no state. Encoding is deterministic:
// the same page gives the same bytes whatever the thread, the batch or the SIMD target. NaN, Inf or
// values beyond what fp16 scales can hold: a lossy recipe keeps that page exactly
// (header.fell_back). Denormals, constants and one-token pages
// are ordinary values.
//
// Errors: INVALID_ARGUMENT for a recipe that does not fit the spec, a page of the wrong size or a
// bad position; DATA_LOSS for encoded bytes that do not decode, never a crash. FAILED_PRECONDITION
// for an op this build lacks.
#ifndef KVSTOW_KERNELS_CODEC_H_
#define KVSTOW_KERNELS_CODEC_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/encoded_page.h"
#include "kernels/importance/budget.h"
#include "kernels/page.h"
#include "kernels/recipe.h"

namespace kvstow {

class CalibrationStore;
// A store with nothing in it, for recipes that need no calibration.
const CalibrationStore& NoCalibrations();

struct PageToEncode {
  std::span<const uint8_t> raw;  // as page.h lays it out; PageBytes(spec, tokens) bytes
  uint32_t tokens = 0;           // 1..spec.page_tokens
  uint64_t first_position = 0;
  absl::string_view key;  // <= 64 bytes, goes into the header
  // Xxh3_128 of `raw` where the caller has it already: saves a pass over the page.
  std::optional<Digest128> raw_digest = {};
  // Xxh3 of each run of KeptRunBytes, where the caller has them: saves another. Else empty.
  std::span<const uint64_t> run_digests = {};
  // Keeps `raw` alive: bodies of recipes that keep the very bytes then reference it. Null: they are
  // copied.
  std::shared_ptr<const void> raw_owner = nullptr;
  // What importance policies read (importance/importance.h); null or empty: nothing is known.
  const AttentionColumns* columns = nullptr;
  const QueryStatistics* queries = nullptr;
  std::span<const uint8_t> protected_tokens = {};
};

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

// INVALID_ARGUMENT when the recipe does not fit: an unknown op, an argument out of range, a lossy
// recipe for FP8. A group that is longer than its axis is the axis; a last group may be shorter.
// FAILED_PRECONDITION when the recipe needs a calibration that `calibrations` lacks; the codec
// keeps the one it found. Statistics of queries that the recipe leaves open and that `calibrations`
// lacks come with each page (PageToEncode::queries), which others do not read. A recipe may leave
// to each page what it is coded by: its step (rate_codec.h), the axis of K's groups (key_groups.h).
absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(
    const Recipe& recipe, const KvSpec& spec,
    const CalibrationStore& calibrations = NoCalibrations());

// Decodes any page, whatever recipe made it: the header says how. segments[i] is the body of
// header.segments[i]; the list may be shorter than the header's (dropped refinements), and a body
// may be absent when none of its layers are wanted, or when it is a refinement: its run is then
// decoded from the levels before it. `out` is the wanted layers of the wanted tokens, laid out as a
// raw page of so many tokens, and is written whole. Only the runs of the wanted layers are decoded,
// and of them no more tokens than the codec must. DATA_LOSS when a base level is missing or a body
// does not decode, FAILED_PRECONDITION for an op or token classes that this build lacks and for a
// calibration that `calibrations` lacks, INVALID_ARGUMENT for layers or tokens that the page does
// not have and `out` of the wrong size. Digests of bodies are checked by whoever read them; this
// checks the raw digest of exact pages that are decoded whole.
struct PageRange {  // a count of 0 = all from `first`
  LayerRange layers;
  TokenRange tokens;
};
absl::Status DecodePage(const PageHeader& header,
                        std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                        std::span<uint8_t> out,
                        const CalibrationStore& calibrations = NoCalibrations());
// The whole page.
absl::Status DecodePage(const PageHeader& header, std::span<const SharedBytes> segments,
                        std::span<uint8_t> out,
                        const CalibrationStore& calibrations = NoCalibrations());

// What is called in the place of Codec::Encode and of DecodePage, does what they do, and answers
// alike: where a page's bytes lie in a GPU's memory.
using PageCoder = std::function<absl::StatusOr<EncodedPage>(const PageToEncode&)>;
using PageDecoder =
    std::function<absl::Status(const PageHeader&, std::span<const std::optional<SharedBytes>>,
                               PageRange wanted, std::span<uint8_t> out)>;

// The wanted layers of all tokens without decoding: parts of the bodies, which in this order are
// what DecodePage would write. Nothing where the recipe does not keep the very bytes. Errors and
// checks are DecodePage's, but for the raw digest, which nobody needs to check over bodies whose
// own digests were checked.
absl::StatusOr<std::optional<std::vector<SharedBytes>>> PageInPlace(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    LayerRange wanted, const CalibrationStore& calibrations = NoCalibrations());

// Which of the wanted tokens a page holds, from the base levels in `segments`: those of the wanted
// layers must be there. The selection has the wanted layers and tokens alone. Nothing when the page
// holds all of them: its recipe drops none. Errors are DecodePage's.
absl::StatusOr<std::optional<Selection>> KeptTokens(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    PageRange wanted = {});

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_H_
