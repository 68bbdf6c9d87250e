// One page on its way into the store, whatever brings it: a Put stream, a direct connection, shared
// memory, a GPU. The rules of a put are here: check, already there, room, digests, write, count.
// Transports only move bytes and send the answer:
//
//   IncomingPage page(parts, space, tenant, payload, begin, parent_key);
//   if (auto answer = page.Begin()) ...   // it needs no bytes
//   page.Admit()                          // beside streams, whose windows hold their pages
//   page.Stage(), then Append or Fill     // bytes that travel
//   page.Store()                          // or Store(bytes), of memory that is shared
//
// Each page has one answer: of Begin, Store or Refuse. The metrics count it. The destructor gives
// room and staged bytes back. Not thread-safe. Store takes the time of encoding and of the ack.
#ifndef KVSTOW_SERVICE_PAGES_INCOMING_PAGE_H_
#define KVSTOW_SERVICE_PAGES_INCOMING_PAGE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/page/page_digests.h"
#include "service/access/tenants.h"
#include "service/pages/admission.h"
#include "service/pages/page_writer.h"
#include "storage/store/staging.h"

namespace kvstow {

// The parts that pages on their way in use; outlives them all.
struct PutParts {
  Staging& staging;
  PageWriter& writer;
  Admission& admission;
  Metrics& metrics;
  TenantTable* tenants = nullptr;  // null: tenants have no limits
};

class IncomingPage {
 public:
  // `space` outlives this. `tenant` is that of the caller, who pays for the way. `payload` is RAW
  // or ENCODED. `parent_key` names the previous page in its prompt; "" = not known.
  IncomingPage(PutParts& parts, const Space& space, std::string tenant, v1::Payload payload,
               v1::PutPage page, std::string parent_key)
      : parts_(parts),
        space_(space),
        tenant_(std::move(tenant)),
        payload_(payload),
        page_(std::move(page)),
        parent_key_(std::move(parent_key)) {}
  ~IncomingPage();
  IncomingPage(const IncomingPage&) = delete;
  IncomingPage& operator=(const IncomingPage&) = delete;

  const v1::PutPage& page() const { return page_; }

  // Returns the answer when the page needs no bytes: it is refused, or already there. It is also
  // refused while the server drains, and beyond the rate of the caller's tenant, which pays for the
  // payload here.
  std::optional<v1::PutResult> Begin();
  // Takes bytes of Admission. RESOURCE_EXHAUSTED: there is no room, even after a moment.
  absl::Status Admit();

  // Opens room for the payload.
  absl::Status Stage();
  // Takes the next piece of the payload, which belongs at `offset`.
  absl::Status Append(uint64_t offset, std::span<const uint8_t> piece);
  // Takes the whole payload: `read` fills one piece after the other. A raw page comes in pieces of
  // `piece_bytes`, so that each is digested while it is in the cache.
  absl::Status Fill(size_t piece_bytes,
                    absl::FunctionRef<absl::Status(std::span<uint8_t> piece)> read);
  // Takes the page's digest, where it comes behind the payload.
  absl::Status SetDigest(absl::string_view digest);
  uint64_t received() const { return received_; }
  bool whole() const { return received_ == page_.payload_bytes(); }

  // Stores the staged payload.
  v1::PutResult Store();
  // Stores `bytes`, the whole payload (PageWriter::Write says what may change meanwhile). `coder`,
  // if any, codes a raw page.
  v1::PutResult Store(const SharedBytes& bytes, const PageCoder& coder = nullptr);
  // Answers that the page is not stored.
  v1::PutResult Refuse(absl::string_view why) { return Counted(Refused(why)); }

 private:
  uint64_t RawBytes() const { return PageBytes(space_.spec, page_.tokens()); }
  void Took(std::span<const uint8_t> piece);
  v1::PutResult Counted(v1::PutResult result);

  PutParts& parts_;
  const Space& space_;
  const std::string tenant_;
  const v1::Payload payload_;
  v1::PutPage page_;
  std::string parent_key_;
  std::optional<Admission::Bytes> held_;
  Staging::Ticket ticket_ = 0;           // 0 = none
  uint64_t received_ = 0;                // of the payload
  Time begin_ = Clock::Real().Now();     // of the work that takes time, without the way here
  std::optional<PageDigester> digests_;  // of a raw page that is staged; its columns follow
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_INCOMING_PAGE_H_
