// PageCooler: makes the cold form of a page from its hot one, for spaces whose recipe has both.
//
// The store calls it when a hot page is about to leave memory; the result takes the page's place.
// The raw digest stays that of the page as it was put, which names its content; the header says
// what is exact. The gains count what the hot form had lost already, also by levels that it had no
// longer, so a reply's estimated error is that of both forms. Policies of the cold recipe read the
// reported attention of the page. That attention also weighs the worth of its segments to the
// store.
//
// Where the server has a GPU, it codes pages of a calibrated cold recipe, several in one call
// (DeviceCoder). The CPU codes all others, and those that the GPU refused or failed on.
//
// Thread-safe; takes the time of a decode and an encode of each page.
#ifndef KVSTOW_SERVICE_PAGES_PAGE_COOLER_H_
#define KVSTOW_SERVICE_PAGES_PAGE_COOLER_H_

#include <optional>
#include <span>
#include <vector>

#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "service/ops/metrics.h"
#include "service/pages/attention_pool.h"
#include "service/pages/device_coder.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class PageCooler {
 public:
  // All of them outlive this.
  PageCooler(const Spaces& spaces, const CalibrationStore& calibrations,
             const AttentionPool& attention, Metrics& metrics,
             DeviceCoder& coder = DeviceCoder::None())
      : spaces_(spaces),
        calibrations_(calibrations),
        attention_(attention),
        metrics_(metrics),
        coder_(coder) {}

  // Returns nothing when the page has no cold form: its space has none, its values do not fit the
  // cold recipe, or something that the recipe needs is not here.
  std::optional<ColdForm> Cool(const PageName& name, const SharedBytes& header,
                               std::span<const SharedBytes> bodies) const;
  // The same for several pages: an answer for each.
  std::vector<std::optional<ColdForm>> CoolAll(std::span<const HotForm> pages) const;
  // Returns the spaces whose cold forms the GPU makes in one call with those of this one, itself
  // among them; none when the CPU makes them.
  std::vector<SpaceId> Together(SpaceId space) const;
  // Returns what the store calls. This outlives it.
  ColdForms Forms() const;

 private:
  struct Job;
  // Finds what is to code the page, and decodes its hot form where the host must.
  absl::Status Begin(const HotForm& page, Job& job) const;
  absl::Status Decode(Job& job) const;
  void Encode(std::span<Job> jobs) const;
  absl::StatusOr<EncodedPage> EncodeOnCpu(Job& job) const;
  absl::StatusOr<ColdForm> End(Job& job) const;
  // Makes the cold forms of pages from `first` on, as many as one call of the GPU takes. Returns
  // the end of them.
  size_t CoolFrom(size_t first, std::span<const HotForm> pages,
                  std::vector<std::optional<ColdForm>>& out) const;

  const Spaces& spaces_;
  const CalibrationStore& calibrations_;
  const AttentionPool& attention_;
  Metrics& metrics_;
  DeviceCoder& coder_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_COOLER_H_
