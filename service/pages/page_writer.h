// PageWriter: one page from a Put stream into the store: check, digest, encode, publish.
//
// Without gRPC, so that it can be tested alone. Thread-safe; Write takes the time that encoding and
// the ack take, so it runs on a worker thread. Nothing throws and nothing fails but the page: every
// outcome is a typed result with a sentence.
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
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class PageWriter {
 public:
  // `default_ack` is what ACK_UNSPECIFIED means; a server without a disk offers MEMORY only.
  PageWriter(TieredStore& store, AttentionReports& reports, Metrics& metrics, bool has_disk);

  // What can be told before any payload came: INVALID_ARGUMENT names the field. `payload` is how
  // the stream's pages come, RAW or ENCODED.
  absl::Status Check(const Space& space, v1::Payload payload, const v1::PutPage& page) const;

  // The result, when a page of this key and digest is stored with the ack that was asked for, which
  // counts as a use: then its payload need not even be looked at. None for a page without a digest.
  std::optional<v1::PutResult> AlreadyThere(const Space& space, const v1::PutPage& page) const;

  // `bytes` is the whole payload of a page that passed Check: the page, then its columns.
  // `parent_key` names the page before it in its prompt; "" = not known. `coder`, if any, codes a
  // raw page. `came`: the digests of a raw page's bytes as they came, where they are known.
  // `result.page` is left to the caller.
  //
  // `bytes` of a raw page without an owner may change while they are read, as those of a worker's
  // memory may. A page that is kept exactly, by its recipe or because it fell back, is then copied
  // first: its digest is made of the copy, and the copy is coded and kept. Other recipes read such
  // bytes in place: what they store is a lossy coding of what was there, whose raw digest is the
  // writer's word.
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
};

// A result that says no.
v1::PutResult Refused(absl::string_view why);
// Of a page that is for another space than this server has under that name.
v1::PutResult NotCompatible(const absl::Status& why);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_WRITER_H_
