// PageReader: takes one page out of the store for a Get stream: find, read, check, decode.
//
// It never lies. The header's key must be the requested key, its geometry the space's, and its
// segments those that the store names; else the page is CORRUPT, and is dropped and counted. A
// damaged copy costs that copy alone while there is a good one, which is then the answer. The
// reader drops the page that it read, by its number: a page that has its name by now stays. Every
// reply names the key, and a payload without digests of its own gets one here. The reply describes
// the bytes: levels, exactness, error left, which tokens were kept. A page that falls short of the
// request's limits (min_levels, max_error) is a MISS, counted, before anything is read. A page
// whose calibration is not here cannot be decoded: it is a MISS, counted, until the calibration is
// here again. Where the server has a GPU, it decodes calibrated pages that are wanted whole
// (DeviceCoder); the CPU decodes all others, and those on which the GPU failed.
//
// A page that only the remote tier has is *far*: Bring waits for it, and then Fetch reads it. Fetch
// alone waits for no network. So a transport holds bytes of Admission for a Fetch, and none while
// the remote tier is slow.
//
// Without gRPC, so tests can run it alone. Thread-safe. Fetch takes the time of reading and
// decoding, so it runs on a worker thread.
#ifndef KVSTOW_SERVICE_PAGES_PAGE_READER_H_
#define KVSTOW_SERVICE_PAGES_PAGE_READER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/importance/budget.h"
#include "kernels/page/encoded_page.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/access/tenants.h"
#include "service/ops/metrics.h"
#include "service/pages/device_coder.h"
#include "service/pages/page_sink.h"
#include "service/remote/remote_tier.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT for a request that nobody can mean: its key is longer than keys are.
absl::Status CheckRequest(const v1::GetPage& request);

// The caller that asks for pages.
struct Asking {
  std::string tenant = {};  // pays for the bytes
  NamedLease lease = 0;     // 0 = none
};

struct FetchedPage {
  v1::PageReply reply;
  std::vector<SharedBytes> payload;  // reply.payload_bytes in all; empty unless HIT
};

class PageReader {
 public:
  // `calibrations` are those that pages may need. All arguments outlive this.
  PageReader(TieredStore& store, const CalibrationStore& calibrations, Metrics& metrics,
             TenantTable* tenants = nullptr, RemoteTier* remote = nullptr,
             DeviceCoder& coder = DeviceCoder::None())
      : store_(store),
        calibrations_(calibrations),
        metrics_(metrics),
        tenants_(tenants),
        remote_(remote),
        coder_(coder) {}

  // Returns whether a page is far: Bring would wait for it.
  bool IsFar(const Space& space, const std::string& key) const;

  struct Brought {
    std::unique_ptr<FetchedPage> answer;  // null: the page is to be fetched
    std::optional<Time> since;            // when the wait for it began, if it was far and came
  };
  // Brings a far page here, within two seconds. `answer` is that of a page that is not to be
  // fetched: it did not come, or Fetch would refuse it. Does nothing for a page that is not far.
  Brought Bring(const Space& space, const Asking& by, const v1::GetPage& request);

  // A page beyond the rate of the asking tenant is UNAVAILABLE; one that is read is paid for by the
  // bytes of its payload. Each page that a lease is used for renews it. With Checks::kReader the
  // worker compares the bytes with their digests where the payload has some. Then the reader does
  // not check an exact page that goes whole, or an encoded one. `far_since` is Brought::since.
  FetchedPage Fetch(const Space& space, const Asking& by, v1::Payload payload,
                    const v1::GetPage& request, Checks checks,
                    std::optional<Time> far_since = std::nullopt);

  // Fetches a raw page into memory of the caller's. The bytes must fit (else NOT_COMPATIBLE) and
  // fill its front: decoding is then the only copy. `payload` has what would follow them: the list
  // of kept tokens. Unless the reply is a HIT, the memory is undefined.
  FetchedPage FetchTo(const Space& space, const Asking& by, const v1::GetPage& request,
                      PageSink& out, std::optional<Time> far_since = std::nullopt);

  // Does the same for Verify: reads and decodes every level, and counts nothing as a Get.
  v1::PageReply Check(const Space& space, const v1::GetPage& request);

 private:
  struct Selected;
  // The request for a page: how it travels, and where a raw page goes; without a sink, into new
  // memory.
  struct Wanted {
    const Space& space;
    v1::Payload payload;
    const v1::GetPage& request;
    PageSink* sink = nullptr;
    Checks checks = Checks::kStore;
  };
  bool Refuses(const Asking& by, FetchedPage& out);
  FetchedPage Counted(const Space& space, const Asking& by, const v1::GetPage& request, Time begin,
                      FetchedPage out);
  FetchedPage Fetch(const Asking& by, const Wanted& wanted, std::optional<Time> far_since);
  absl::StatusOr<PageHeader> CheckedHeader(const Space& space, const v1::GetPage& request,
                                           const PageFacts& facts) const;
  void FetchChecked(const Wanted& wanted, FetchedPage& out);
  absl::Status FetchInto(const Wanted& wanted, PageNumber& number, FetchedPage& out);
  absl::Status FetchGoodCopy(Wanted wanted, PageNumber number, const absl::Status& damage,
                             FetchedPage& out);
  absl::Status CheckFidelity(const Selected& selected, const v1::GetPage& request);
  absl::Status MakePayload(const Wanted& wanted, const Selected& selected,
                           const SharedBytes& header, FetchedPage& out);
  absl::StatusOr<std::vector<SharedBytes>> RawPayload(const Wanted& wanted,
                                                      const Selected& selected);
  absl::StatusOr<SharedBytes> SummaryPayload(const Wanted& wanted, const Selected& selected,
                                             const Selection* kept);
  absl::Status RawPayloadTo(const Wanted& wanted, const Selected& selected, PageSink& out);
  absl::Status Decode(const Wanted& wanted, const Selected& selected, PageSink& out);
  absl::Status ReadSegments(const PageName& name, const PageFacts& facts, Checks checks,
                            Selected& selected);

  TieredStore& store_;
  const CalibrationStore& calibrations_;
  Metrics& metrics_;
  TenantTable* const tenants_;  // null: tenants have no limits
  RemoteTier* const remote_;    // null: none
  DeviceCoder& coder_;
};

// Returns about the payload bytes of a page of the space. A raw page never has more, except for the
// list of kept tokens.
uint64_t PayloadBound(const Space& space, const v1::GetPage& request);

// Returns about the bytes that a Fetch has in memory while it runs: PayloadBound, and the coded
// form of the page.
uint64_t FetchBytes(const Space& space, const v1::GetPage& request);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_READER_H_
