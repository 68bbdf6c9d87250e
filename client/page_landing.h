// Where the payload of a page that comes goes: raw bytes straight into the caller's buffer, encoded
// ones and what follows raw ones into memory of our own; then it is checked and decoded. Raw bytes
// are digested as they land.
//
//   KVSTOW_RETURN_IF_ERROR(CheckKey(page.key, reply));
//   PageLanding landing(page, payload, kind, core.options, decoder);
//   KVSTOW_RETURN_IF_ERROR(landing.Begin(reply));
//   while (!landing.whole()) { ...fill the front of landing.Room()...; landing.Filled(n); }
//   GetResult result = landing.Finish();
//
// Not thread-safe. One page each.
#ifndef KVSTOW_CLIENT_PAGE_LANDING_H_
#define KVSTOW_CLIENT_PAGE_LANDING_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "client/client.h"
#include "client/space_payloads.h"
#include "kernels/codec/decode_page.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// How the pages of a call come.
struct LandingKind {
  bool encoded = false;
  bool summaries = false;  // of keys: as raw pages
};

// UNAVAILABLE when the reply is another page's: the connection is out of step, and what comes over
// it is not to be believed. Another one may do better.
absl::Status CheckKey(absl::string_view asked, const v1::PageReply& reply);

// The digest that the payload of a page must have that comes raw, or as a summary; none is equal to
// an empty one.
std::string DueDigest(const PageGet& page, const v1::PageReply& reply, bool summary);

// At most this is payload of the page.
uint64_t PayloadLimit(const PageGet& page, const SpacePayload& space, LandingKind kind);

class PageLanding {
 public:
  // All of them outlive this. `decoder`, if not null, is called in the place of DecodePage.
  PageLanding(const PageGet& page, const SpacePayload& space, LandingKind kind,
              const ClientOptions& options, const PageDecoder& decoder)
      : page_(page), space_(space), kind_(kind), options_(options), decoder_(decoder) {}

  // What the server says of the page. UNAVAILABLE when its payload does not fit: there is no way to
  // skip it, and Finish() says what is wrong.
  absl::Status Begin(const v1::PageReply& reply);

  // Whether all of the payload is here: at once, where none comes.
  bool whole() const { return filled_ == total_; }
  uint64_t filled() const { return filled_; }
  uint64_t left() const { return total_ - filled_; }
  // Where its next bytes go; all that is left of them, or a part.
  std::span<uint8_t> Room();
  void Filled(size_t bytes);

  // Once, when it is whole. INTERNAL when the server's list of kept tokens is none.
  absl::StatusOr<GetResult> Finish();
  // Then: whether what came was not what its digests say.
  bool damaged() const { return damaged_; }

 private:
  uint64_t direct() const { return kind_.encoded ? 0 : result_.bytes; }
  void Decode();

  const PageGet& page_;
  const SpacePayload& space_;
  const LandingKind kind_;
  const ClientOptions& options_;
  const PageDecoder& decoder_;
  GetResult result_;
  bool damaged_ = false;
  v1::KeptTokens kept_;
  uint64_t total_ = 0, filled_ = 0;  // of its payload
  Xxh3Stream digest_;                // of what comes raw
  std::string due_;                  // is what it must be
  std::vector<uint8_t> payload_;     // an encoded page, or what follows a raw one
};

// False: a page whose bytes are to have the digest `due`, and have `came`, is CORRUPT.
bool CheckDigest(const Digest128& came, absl::string_view due, GetResult& result);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAGE_LANDING_H_
