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
// header.segments[i]. The list may be shorter than the header's (dropped refinements). A body may
// be absent when none of its layers are wanted. A refinement may always be absent: its run is then
// decoded from the levels before it. `out` takes the wanted layers of the wanted tokens, laid out
// as a raw page of so many tokens, and is written whole. Decodes only the runs of the wanted
// layers, and no more of their tokens than the codec must.
//
// Fails with DATA_LOSS when a base level is missing or a body does not decode. Fails with
// FAILED_PRECONDITION for an op or token classes that this build lacks, and for a calibration that
// `calibrations` lacks. Fails with INVALID_ARGUMENT for layers or tokens that the page does not
// have, and for `out` of the wrong size. The reader of the bodies checks their digests. This checks
// the raw digest of exact pages that it decodes whole.
absl::Status DecodePage(const PageHeader& header,
                        std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                        std::span<uint8_t> out,
                        const CalibrationStore& calibrations = NoCalibrations());
// Decodes the whole page.
absl::Status DecodePage(const PageHeader& header, std::span<const SharedBytes> segments,
                        std::span<uint8_t> out,
                        const CalibrationStore& calibrations = NoCalibrations());

// Stand-ins for Codec::Encode and DecodePage, with the same results, for pages whose bytes lie in a
// GPU's memory.
using PageCoder = std::function<absl::StatusOr<EncodedPage>(const PageToEncode&)>;
using PageDecoder =
    std::function<absl::Status(const PageHeader&, std::span<const std::optional<SharedBytes>>,
                               PageRange wanted, std::span<uint8_t> out)>;

// Returns the wanted layers of all tokens without decoding: parts of the bodies, which in this
// order are the bytes that DecodePage would write. Returns nothing when the recipe does not keep
// the very bytes. Errors and checks are DecodePage's, except for the raw digest: nobody needs it
// over bodies whose own digests were checked.
absl::StatusOr<std::optional<std::vector<SharedBytes>>> PageInPlace(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    LayerRange wanted, const CalibrationStore& calibrations = NoCalibrations());

// Returns which of the wanted tokens a page holds, from the base levels in `segments`. Those of the
// wanted layers must be there. The selection has only the wanted layers and tokens. Returns nothing
// when the recipe drops none, so the page holds all of them. Errors are DecodePage's.
absl::StatusOr<std::optional<Selection>> KeptTokens(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    PageRange wanted = {});

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_DECODE_PAGE_H_
