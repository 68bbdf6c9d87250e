// Lands the payload of a page that comes. Raw bytes go straight into the caller's buffer; encoded
// bytes, and those that follow raw ones, go into own memory. Then the landing checks and decodes
// the payload. It digests raw bytes as they land.
//
//   KVSTOW_RETURN_IF_ERROR(CheckKey(page.key, reply));
//   PageLanding landing(page, payload, kind, core.options, decoder);
//   KVSTOW_RETURN_IF_ERROR(landing.Begin(reply));
//   while (!landing.whole()) { ...fill the front of landing.Room()...; landing.Filled(n); }
//   GetResult result = landing.Finish();
//
// Not thread-safe. One object for each page.
#ifndef KVSTOW_CLIENT_PAYLOAD_PAGE_LANDING_H_
#define KVSTOW_CLIENT_PAYLOAD_PAGE_LANDING_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "client/client_options.h"
#include "client/pages.h"
#include "client/payload/space_payloads.h"
#include "kernels/codec/decode_page.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// The form of the pages of a call.
struct LandingKind {
  bool encoded = false;
  bool summaries = false;  // of keys; they travel like raw pages
};

// Fails with UNAVAILABLE when the reply is another page's. The connection is then out of step, and
// nothing more that comes over it counts. Another connection may do better.
absl::Status CheckKey(absl::string_view asked, const v1::PageReply& reply);

// Returns the digest that the payload of a raw page, or of a summary, must have. An empty one
// matches no payload.
std::string DueDigest(const PageGet& page, const v1::PageReply& reply, bool summary);

// Returns the most payload bytes that the page may have.
uint64_t PayloadLimit(const PageGet& page, const SpacePayload& space, LandingKind kind);

class PageLanding {
 public:
  // All arguments outlive this. `decoder`, if not null, decodes in place of DecodePage.
  PageLanding(const PageGet& page, const SpacePayload& space, LandingKind kind,
              const ClientOptions& options, const PageDecoder& decoder)
      : page_(page), space_(space), kind_(kind), options_(options), decoder_(decoder) {}

  // Takes the server's reply for the page. Fails with UNAVAILABLE when its payload does not fit:
  // there is no way to skip it, and Finish() says what is wrong.
  absl::Status Begin(const v1::PageReply& reply);

  // Returns whether all of the payload is here; true at once where none comes.
  bool whole() const { return filled_ == total_; }
  uint64_t filled() const { return filled_; }
  uint64_t left() const { return total_ - filled_; }
  // Returns the place of the next bytes, for all that are left or a part of them.
  std::span<uint8_t> Room();
  void Filled(size_t bytes);

  // Returns the result. Call it once, when the payload is whole. Fails with INTERNAL when the
  // server's list of kept tokens is malformed.
  absl::StatusOr<GetResult> Finish();
  // Returns, after Finish(), whether the payload did not match its digests.
  bool damaged() const { return damaged_; }
  // Returns, after Finish(), whether the page names a calibration that is not here: it must come
  // raw.
  bool lacks_calibration() const { return lacks_calibration_; }

 private:
  uint64_t direct() const { return kind_.encoded ? 0 : result_.bytes; }
  void Decode();

  const PageGet& page_;
  const SpacePayload& space_;
  const LandingKind kind_;
  const ClientOptions& options_;
  const PageDecoder& decoder_;
  GetResult result_;
  bool damaged_ = false, lacks_calibration_ = false;
  v1::KeptTokens kept_;
  uint64_t total_ = 0, filled_ = 0;  // bytes of the payload
  Xxh3Stream digest_;                // of a payload that is not encoded
  std::string due_;                  // the value that digest_ must have
  std::vector<uint8_t> payload_;     // an encoded page, or the bytes that follow a raw one
};

// Returns whether `came`, the digest of a page's bytes, is `due`. If not, makes `result` CORRUPT.
bool CheckDigest(const Digest128& came, absl::string_view due, GetResult& result);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_PAGE_LANDING_H_
