#include "service/pages/encoded_put.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/key_groups.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/encoded_payload.h"

namespace kvstow {
namespace {

absl::Status Claims(absl::string_view what, const auto& claimed, const auto& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("the encoded page says ", what, " ", claimed, ", but ", wanted, " is due"));
}

absl::Status CheckClaims(const Space& space, const v1::PutPage& page, const PageHeader& header) {
  if (header.key != page.key()) {
    return absl::InvalidArgumentError("the encoded page belongs to another key");
  }
  if (header.tokens != page.tokens()) return Claims("tokens", header.tokens, page.tokens());
  if (header.first_position != page.first_position()) {
    return Claims("first_position", header.first_position, page.first_position());
  }
  if (!SameGeometry(header, space.spec)) {
    return absl::InvalidArgumentError("the encoded page has another geometry than its space");
  }
  const std::string& pipeline = space.codec->recipe().pipeline();
  KVSTOW_ASSIGN_OR_RETURN(const auto channels, WithKeyChannels(space.codec->recipe()));
  const bool by_channel =
      channels.has_value() && !header.fell_back && header.pipeline == channels->pipeline();
  if (header.pipeline != (header.fell_back ? "raw" : pipeline) && !by_channel) {
    return Claims("recipe", header.pipeline, pipeline);
  }
  const std::string calibration = HexOf(header.calibration);
  KVSTOW_ASSIGN_OR_RETURN(const auto needs, CalibrationNeeds(space.codec->recipe()));
  const bool due = needs.has_value() && !header.fell_back;
  if ((header.calibration != CalibrationId{}) != due ||
      (due && !absl::StrContains(pipeline, calibration))) {
    return Claims("calibration", calibration, due ? pipeline : "none");
  }
  if (header.exact != (header.fell_back || space.codec->exact())) {
    return absl::InvalidArgumentError("the encoded page's flag `exact` contradicts its recipe");
  }
  if (!page.digest().empty() &&
      !std::ranges::equal(AsBytes(page.digest()), std::span(header.raw_digest.bytes))) {
    return Claims("raw digest", header.raw_digest.Hex(), HexOf(AsBytes(page.digest())));
  }
  return absl::OkStatus();
}

// Storage weighs gains against bytes: no page may claim more than there is to gain.
absl::Status CheckGains(const PageHeader& header) {
  const double slabs = header.layers * (header.head_dim_v > 0 ? 2.0 : 1.0);
  double sum = 0;
  for (const SegmentInfo& s : header.segments) sum += std::abs(s.gain);
  if (sum <= 1.01 * slabs * header.tokens) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError("the encoded page's segments claim more gain than a page has");
}

absl::Status CheckAllIsThere(const Space& space, const ParsedPayload& parsed) {
  const PageHeader& header = parsed.header;
  const auto came =
      std::ranges::count_if(parsed.bodies, [](const auto& b) { return b.has_value(); });
  const uint32_t levels = LevelsOf(header), due = header.fell_back ? 1 : space.codec->levels();
  if (static_cast<size_t>(came) == header.segments.size() && levels == due) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the encoded page has ", came, " of ",
                                                 header.segments.size(), " segments in ", levels,
                                                 " of ", due, " levels: send all of them"));
}

// Checks a page that says that it is exact.
absl::Status CheckRawDigest(const ParsedPayload& parsed) {
  const PageHeader& header = parsed.header;
  KVSTOW_ASSIGN_OR_RETURN(const auto parts, PageInPlace(header, parsed.bodies, {}));
  if (!parts.has_value()) {
    ByteBlock decoded(PageBytes(header.Geometry(), header.tokens));
    return DecodePage(header, parsed.bodies, {}, decoded.span());  // compares, too
  }
  Xxh3Stream digest;
  for (const SharedBytes& part : *parts) digest.Update(part.span());
  if (digest.Finish() == header.raw_digest) return absl::OkStatus();
  return absl::DataLossError("the page does not match its raw digest");
}

}  // namespace

absl::Status CheckTakesEncoded(const Space& space) {
  if (space.calibration_missing) {
    return absl::FailedPreconditionError(absl::StrCat(
        "payload: space '", space.name, "' lacks its calibration: nothing can be put into it"));
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto target, RateTargetOf(space.codec->recipe()));
  if (!target.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("payload: space '", space.name,
                   "' has a recipe that seeks its step page by page; send its pages RAW"));
}

absl::StatusOr<EncodedPage> CheckedEncodedPage(const Space& space, const v1::PutPage& page,
                                               std::span<const uint8_t> payload) {
  KVSTOW_ASSIGN_OR_RETURN(ParsedPayload parsed, ParseEncodedPayload(payload));
  KVSTOW_RETURN_IF_ERROR(CheckClaims(space, page, parsed.header));
  KVSTOW_RETURN_IF_ERROR(CheckGains(parsed.header));
  KVSTOW_RETURN_IF_ERROR(CheckAllIsThere(space, parsed));
  if (parsed.header.exact) KVSTOW_RETURN_IF_ERROR(CheckRawDigest(parsed));
  EncodedPage out{.header = std::move(parsed.header),
                  .header_bytes = std::move(parsed.header_bytes)};
  for (std::optional<SharedBytes>& body : parsed.bodies) out.segments.push_back(*std::move(body));
  return out;
}

Digest128 ContentDigest(const PageHeader& header) {
  ByteWriter out;
  out.PutBytes(header.raw_digest.bytes);
  for (const SegmentInfo& segment : header.segments) out.Put(segment.digest);
  const Sha256Digest digest = Sha256(AsBytes(out.bytes()));
  Digest128 half;
  std::copy_n(digest.begin(), half.bytes.size(), half.bytes.begin());
  return half;
}

}  // namespace kvstow
