#include "client/payload/page_landing.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/payload/decode_payload.h"
#include "client/payload/messages.h"
#include "kernels/calibration/calibration.h"
#include "kernels/page/encoded_payload.h"

namespace kvstow {
namespace {

bool IsWhole(const PageGet& page) {
  return page.first_layer == 0 && page.layer_count == 0 && page.first_token == 0 &&
         page.token_count == 0;
}

}  // namespace

absl::Status CheckKey(absl::string_view asked, const v1::PageReply& reply) {
  if (reply.key() == asked) return absl::OkStatus();
  return absl::UnavailableError("the server answered another page than the one that was due");
}

std::string DueDigest(const PageGet& page, const v1::PageReply& reply, bool summary) {
  const bool as_put = reply.exact() && IsWhole(page) && !summary && reply.kept().bytes() == 0;
  return as_put ? reply.raw_digest() : reply.payload_digest();
}

// The list of kept tokens is smaller than the tokens. Encoded pages come in whole segments,
// whatever part of them was asked for.
uint64_t PayloadLimit(const PageGet& page, const SpacePayload& space, LandingKind kind) {
  if (!kind.encoded)
    return std::max<uint64_t>(2 * page.out.size(), 1);  // a limit of 0 would stop the stream
  return (IsWhole(page) ? page.out.size() : space.page_bytes) + kEncodedOverhead;
}

absl::Status PageLanding::Begin(const v1::PageReply& reply) {
  result_ = GetResultOf(reply);
  if (result_.outcome != PageOutcome::kHit) {
    result_.bytes = 0;
    return absl::OkStatus();
  }
  const uint64_t limit = PayloadLimit(page_, space_, kind_);
  const uint64_t fits = kind_.encoded ? limit : page_.out.size();
  if (result_.bytes > fits || reply.payload_bytes() > limit ||
      result_.bytes > reply.payload_bytes()) {
    result_.message = absl::StrCat("the page has ", result_.bytes, " bytes, the buffer ",
                                   page_.out.size(), ": does the worker use the space's spec?");
    result_.outcome = PageOutcome::kNotCompatible;
    return absl::UnavailableError("the connection holds a page that does not fit its buffer");
  }
  total_ = reply.payload_bytes();
  payload_.resize(total_ - direct());
  kept_ = reply.kept();
  due_ = DueDigest(page_, reply, kind_.summaries);
  return absl::OkStatus();
}

std::span<uint8_t> PageLanding::Room() {
  if (filled_ < direct()) return page_.out.subspan(filled_, direct() - filled_);
  return std::span(payload_).subspan(filled_ - direct());
}

void PageLanding::Filled(size_t bytes) {
  if (!kind_.encoded) digest_.Update(Room().first(bytes));
  filled_ += bytes;
}

absl::StatusOr<GetResult> PageLanding::Finish() {
  if (result_.outcome != PageOutcome::kHit) return std::move(result_);
  if (kind_.encoded) {
    Decode();
  } else if (CheckDigest(digest_.Finish(), due_, result_) && kept_.bytes() > 0) {
    KVSTOW_ASSIGN_OR_RETURN(result_.keep, KeepOf(kept_, result_, payload_));
  }
  damaged_ = result_.outcome == PageOutcome::kCorrupt;
  return std::move(result_);
}

void PageLanding::Decode() {
  const absl::StatusOr<DecodedPayload> decoded =
      DecodeEncodedPayload(payload_, page_, CalibrationsOf(options_), decoder_);
  if (decoded.ok()) {
    result_.bytes = decoded->bytes;
    result_.tokens = decoded->tokens;
    result_.kept_share = decoded->kept_share;
    result_.keep = decoded->keep;
    result_.first_position += page_.first_token;
    return;
  }
  lacks_calibration_ = absl::IsNotFound(decoded.status());
  result_.outcome = OutcomeOfFailedDecode(decoded.status());
  result_.message = std::string(decoded.status().message());
  result_.bytes = 0;
}

bool CheckDigest(const Digest128& came, absl::string_view due, GetResult& result) {
  if (due == AsString(came.bytes)) return true;
  result.outcome = PageOutcome::kCorrupt;
  result.message = "the bytes that came do not match their digest";
  result.bytes = 0;
  return false;
}

}  // namespace kvstow
