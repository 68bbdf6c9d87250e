// PageWriter: puts one page from a Put stream into the store: check, digest, encode, publish.
//
// Without gRPC, so tests can run it alone. Thread-safe. Write takes the time of encoding and of the
// ack, so it runs on a worker thread. Nothing throws, and only the page can fail: every outcome is
// a typed result with a sentence.
#ifndef KVSTOW_SERVICE_PAGES_PAGE_WRITER_H_
#define KVSTOW_SERVICE_PAGES_PAGE_WRITER_H_

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/importance/importance.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_digests.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/ops/metrics.h"
#include "service/pages/attention_reports.h"
#include "service/remote/remote_tier.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class PageWriter {
 public:
  // ACK_UNSPECIFIED means PROCESS on a server with a disk, and MEMORY on one without, which offers
  // MEMORY only. Pages that are stored are offered to `remote`; null = none.
  PageWriter(TieredStore& store, AttentionReports& reports, Metrics& metrics, bool has_disk,
             RemoteTier* remote = nullptr);

  // Checks what can be told before any payload came. INVALID_ARGUMENT names the field. `payload` is
  // the form of the stream's pages, RAW or ENCODED.
  absl::Status Check(const Space& space, v1::Payload payload, const v1::PutPage& page) const;

  // Returns the result when a page of this key and digest is stored with the requested ack, which
  // counts as a use. Then nobody needs to look at its payload. Returns none for a page without a
  // digest.
  std::optional<v1::PutResult> AlreadyThere(const Space& space, const v1::PutPage& page) const;

  // Stores a page that passed Check. `bytes` is its whole payload: the page, then its columns.
  // `parent_key` names the previous page in its prompt; "" = not known. `coder`, if any, codes a
  // raw page. `came` has the digests of a raw page's bytes as they came, where they are known. The
  // caller sets `result.page`.
  //
  // `bytes` of a raw page without an owner may change while they are read, as those of a worker's
  // memory may. A page that is kept exactly, by its recipe or because it fell back, is then copied
  // first: Write digests, codes and keeps the copy. Other recipes read such bytes in place. They
  // store a lossy coding of what was there, and its raw digest is the writer's word.
  v1::PutResult Write(const Space& space, v1::Payload payload, const v1::PutPage& page,
                      const SharedBytes& bytes, std::string parent_key,
                      const PageCoder& coder = nullptr,
                      const std::optional<PageDigests>& came = std::nullopt);

 private:
  v1::PutResult WriteCopy(const Space& space, const v1::PutPage& page, const SharedBytes& bytes,
                          std::string parent_key, const PageCoder& coder);
  std::optional<v1::PutResult> AlreadyThere(const Space& space, const v1::PutPage& page,
                                            std::span<const uint8_t> raw_digest) const;
  absl::StatusOr<EncodedPage> Encode(const Space& space, const v1::PutPage& page,
                                     const SharedBytes& raw, const PageDigests& digests,
                                     const AttentionColumns& columns, const PageCoder& coder);
  // Publishes a page, or says why it could not be made.
  v1::PutResult Store(const Space& space, v1::Payload payload, const v1::PutPage& page,
                      absl::StatusOr<EncodedPage> encoded, const AttentionColumns& columns,
                      std::string parent_key);
  Digest128 StoredDigest(const PageName& name, v1::Payload payload, const EncodedPage& page) const;
  bool IsStored(const PageName& name, const PageFacts& there, const EncodedPage& page) const;
  Ack AckOf(const v1::PutPage& page) const;

  TieredStore& store_;
  AttentionReports& reports_;
  Metrics& metrics_;
  const Ack default_ack_;
  RemoteTier* const remote_;
};

// A result that says no.
v1::PutResult Refused(absl::string_view why);
// Returns the result for a page of another space than this server has under that name.
v1::PutResult NotCompatible(const absl::Status& why);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_WRITER_H_
