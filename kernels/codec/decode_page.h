// Decodes pages. Free functions: thread-safe. Encoded bytes that do not decode are DATA_LOSS, never
// a crash.
#ifndef KVSTOW_KERNELS_CODEC_DECODE_PAGE_H_
#define KVSTOW_KERNELS_CODEC_DECODE_PAGE_H_

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/importance/budget.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

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

#endif  // KVSTOW_KERNELS_CODEC_DECODE_PAGE_H_
