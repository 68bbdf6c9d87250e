#include "service/page_cooler.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/codec.h"
#include "kernels/encoded_page.h"
#include "service/convert.h"

namespace kvstow {
namespace {

// Takes the error that `hot` left off the gains of `cold`'s base.
void CountErrorOf(const PageHeader& hot, PageHeader& cold) {
  double left = hot.tokens * hot.layers * (hot.head_dim_v > 0 ? 2.0 : 1.0);
  for (const SegmentInfo& s : hot.segments) left -= s.gain;
  if (hot.exact || left <= 0) return;
  for (SegmentInfo& s : cold.segments) {
    if (s.level > 0) continue;
    const double share = left * s.layer_count / cold.layers;
    s.gain = static_cast<float>(std::max(0.0, s.gain - share));
  }
}

}  // namespace

absl::StatusOr<EncodedPage> PageCooler::Encode(const Space& space, const SharedBytes& header,
                                               std::span<const SharedBytes> bodies) const {
  KVSTOW_ASSIGN_OR_RETURN(const PageHeader hot, ParsePageHeader(header.span()));
  ByteBlock raw(PageBytes(hot.Geometry(), hot.tokens));
  KVSTOW_RETURN_IF_ERROR(DecodePage(hot, bodies, raw.span(), calibrations_));
  KVSTOW_ASSIGN_OR_RETURN(EncodedPage cold,
                          space.cold->Encode({.raw = raw.span(),
                                              .tokens = hot.tokens,
                                              .first_position = hot.first_position,
                                              .key = hot.key,
                                              .raw_digest = hot.raw_digest}));
  if (cold.header.exact && !hot.exact) {
    return absl::OutOfRangeError("its values do not fit the cold recipe");
  }
  CountErrorOf(hot, cold.header);
  cold.header_bytes = SharedBytes::Take(SerializePageHeader(cold.header));
  return cold;
}

std::optional<ColdForm> PageCooler::Cool(const PageName& name, const SharedBytes& header,
                                         std::span<const SharedBytes> bodies) const {
  const std::shared_ptr<const Space> space = spaces_.Find(name.space);
  if (space == nullptr || space->cold == nullptr || space->calibration_missing) return std::nullopt;
  const Time begin = Clock::Real().Now();
  absl::StatusOr<EncodedPage> cold = Encode(*space, header, bodies);
  if (!cold.ok()) {
    Log().debug("a page of space '{}' stays in its hot form: {}", space->name,
                std::string(cold.status().message()));
    return std::nullopt;
  }
  metrics_.ObserveCooling(Clock::Real().Now() - begin);
  return ColdForm{.header = cold->header_bytes,
                  .whole = cold->header.exact,
                  .facts = FactsOf(cold->header),
                  .bodies = std::move(cold->segments)};
}

}  // namespace kvstow
