// PageReader: one page out of the store for a Get stream: find, read, check, decode.
//
// It never lies: the header's key must be the key that was asked for, its geometry the space's, and
// its segments those that the store speaks of; else the page is CORRUPT, is dropped and counted. A
// damaged copy costs that copy alone while there is a good one, which is then the answer. What is
// dropped is the page that was read, by its number: one that has its name by now stays.
// Every reply names the key, and a payload without digests of its own gets one here.
// The reply says what the bytes are: levels, exactness, error left, which tokens were kept. A page
// that falls short of what the request will take (min_levels, max_error) is a MISS, counted, before
// anything is read. A page whose calibration is not here cannot be decoded: a MISS, counted, until
// it is here again.
//
// Without gRPC, so that it can be tested alone. Thread-safe; Fetch takes the time that reading and
// decoding take, so it runs on a worker thread.
#ifndef KVSTOW_SERVICE_PAGES_PAGE_READER_H_
#define KVSTOW_SERVICE_PAGES_PAGE_READER_H_

#include <optional>
#include <span>
#include <vector>

#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/importance/budget.h"
#include "kernels/page/encoded_page.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/ops/metrics.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

struct FetchedPage {
  v1::PageReply reply;
  std::vector<SharedBytes> payload;  // reply.payload_bytes in all; empty unless HIT
};

// Memory that a raw page goes into and that is not the host's.
class PageSink {
 public:
  virtual ~PageSink() = default;
  virtual uint64_t room() const = 0;
  // As DecodePage, into its front. Whatever it fails with, the CPU then decodes for Copy.
  virtual absl::Status Decode(const PageHeader& header,
                              std::span<const std::optional<SharedBytes>> segments,
                              PageRange wanted) = 0;
  // Raw bytes, one part after the other, into its front.
  virtual absl::Status Copy(std::span<const SharedBytes> parts) = 0;
};

class PageReader {
 public:
  // `calibrations` is what pages may need; all of them outlive this.
  PageReader(TieredStore& store, const CalibrationStore& calibrations, Metrics& metrics)
      : store_(store), calibrations_(calibrations), metrics_(metrics) {}

  // `lease` 0 = none; a lease is renewed by each page that it is used for. With Checks::kReader the
  // worker compares digests of what comes with one: an exact page that goes whole, and an encoded
  // one, are then not read for that here.
  FetchedPage Fetch(const Space& space, LeaseId lease, v1::Payload payload,
                    const v1::GetPage& request, Checks checks);

  // A raw page into memory of the caller's, which its bytes must fit (else NOT_COMPATIBLE) and of
  // which they fill the front: decoding is then the only copy. `payload` has what would follow
  // them: the list of kept tokens. Unless it is a HIT, `out` is undefined.
  FetchedPage FetchTo(const Space& space, LeaseId lease, const v1::GetPage& request,
                      std::span<uint8_t> out);
  FetchedPage FetchTo(const Space& space, LeaseId lease, const v1::GetPage& request, PageSink& out);

  // The same for Verify: every level is read and decoded, nothing counts as a Get.
  v1::PageReply Check(const Space& space, const v1::GetPage& request);

 private:
  struct Selected;
  // What is wanted of a page: how it travels, and where a raw one goes; no place: into new memory.
  struct Wanted {
    const Space& space;
    v1::Payload payload;
    const v1::GetPage& request;
    std::optional<std::span<uint8_t>> to = std::nullopt;
    PageSink* sink = nullptr;  // in the place of `to`
    Checks checks = Checks::kStore;
  };
  FetchedPage Fetch(LeaseId lease, const Wanted& wanted);
  absl::StatusOr<PageHeader> CheckedHeader(const Space& space, const v1::GetPage& request,
                                           const PageFacts& facts) const;
  void FetchChecked(const Wanted& wanted, FetchedPage& out);
  absl::Status FetchInto(const Wanted& wanted, PageNumber& number, FetchedPage& out);
  absl::Status FetchGoodCopy(Wanted wanted, PageNumber number, const absl::Status& damage,
                             FetchedPage& out);
  absl::Status CheckFidelity(const Selected& selected, const v1::GetPage& request);
  absl::Status MakePayload(const Wanted& wanted, const Selected& selected,
                           const SharedBytes& header, FetchedPage& out);
  absl::StatusOr<std::vector<SharedBytes>> RawPayload(const Selected& selected);
  absl::StatusOr<SharedBytes> SummaryPayload(const Selected& selected, const Selection* kept);
  absl::Status RawPayloadTo(const Selected& selected, std::span<uint8_t> out);
  absl::Status RawPayloadTo(const Selected& selected, PageSink& out);
  absl::Status Decode(const Selected& selected, std::span<uint8_t> out);
  absl::Status ReadSegments(const PageName& name, const PageFacts& facts, Checks checks,
                            Selected& selected);

  TieredStore& store_;
  const CalibrationStore& calibrations_;
  Metrics& metrics_;
};

// About as many payload bytes come for a page of the space; of a raw one never more, but for the
// list of what was kept.
uint64_t PayloadBound(const Space& space, const v1::GetPage& request);

// About as many bytes a Fetch has in memory while it runs: that, and what a page is decoded from.
uint64_t FetchBytes(const Space& space, const v1::GetPage& request);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_READER_H_
