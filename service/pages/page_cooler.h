// PageCooler: makes the cold form of a page from its hot one, for spaces whose recipe has both.
//
// The store calls it when a hot page is about to leave memory; the result takes the page's place.
// The raw digest stays that of the page as it was put, which names its content; the header says
// what is exact. The gains count what the hot form had lost already, also by levels that it had no
// longer, so a reply's estimated error is that of both forms. Policies of the cold recipe read the
// reported attention of the page. That attention also weighs the worth of its segments to the
// store.
//
// Thread-safe; takes the time of a decode and an encode.
#ifndef KVSTOW_SERVICE_PAGES_PAGE_COOLER_H_
#define KVSTOW_SERVICE_PAGES_PAGE_COOLER_H_

#include <optional>
#include <span>

#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "service/ops/metrics.h"
#include "service/pages/attention_pool.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class PageCooler {
 public:
  // All of them outlive this.
  PageCooler(const Spaces& spaces, const CalibrationStore& calibrations,
             const AttentionPool& attention, Metrics& metrics)
      : spaces_(spaces), calibrations_(calibrations), attention_(attention), metrics_(metrics) {}

  // Returns nothing when the page has no cold form: its space has none, its values do not fit the
  // cold recipe, or something that the recipe needs is not here.
  std::optional<ColdForm> Cool(const PageName& name, const SharedBytes& header,
                               std::span<const SharedBytes> bodies) const;

 private:
  absl::StatusOr<EncodedPage> Encode(const Space& space, const PageHeader& hot,
                                     std::span<const SharedBytes> bodies,
                                     const AttentionColumns& columns) const;
  absl::StatusOr<ColdForm> Make(const Space& space, const PageName& name, const SharedBytes& header,
                                std::span<const SharedBytes> bodies) const;

  const Spaces& spaces_;
  const CalibrationStore& calibrations_;
  const AttentionPool& attention_;
  Metrics& metrics_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_COOLER_H_
