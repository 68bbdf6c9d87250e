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

absl::StatusOr<EncodedPage> PageCooler::Encode(const Space& space, const PageHeader& hot,
                                               std::span<const SharedBytes> bodies,
                                               const AttentionColumns& columns) const {
  ByteBlock raw(PageBytes(hot.Geometry(), hot.tokens));
  KVSTOW_RETURN_IF_ERROR(DecodePage(hot, bodies, raw.span(), calibrations_));
  KVSTOW_ASSIGN_OR_RETURN(EncodedPage cold,
                          space.cold->Encode({.raw = raw.span(),
                                              .tokens = hot.tokens,
                                              .first_position = hot.first_position,
                                              .key = hot.key,
                                              .raw_digest = hot.raw_digest,
                                              .columns = &columns}));
  if (cold.header.exact && !hot.exact) {
    return absl::OutOfRangeError("its values do not fit the cold recipe");
  }
  CountErrorOf(hot, cold.header);
  cold.header_bytes = SharedBytes::Take(SerializePageHeader(cold.header));
  return cold;
}

absl::StatusOr<ColdForm> PageCooler::Make(const Space& space, const PageName& name,
                                          const SharedBytes& header,
                                          std::span<const SharedBytes> bodies) const {
  KVSTOW_ASSIGN_OR_RETURN(const PageHeader hot, ParsePageHeader(header.span()));
  const PooledColumns attention = attention_.Find(name, hot.raw_digest);
  KVSTOW_ASSIGN_OR_RETURN(EncodedPage cold, Encode(space, hot, bodies, ColumnsOf(attention)));
  ColdForm out{.header = cold.header_bytes,
               .whole = cold.header.exact,
               .facts = FactsOf(cold.header),
               .bodies = std::move(cold.segments)};
  const std::vector<float> gains = WorthyGains(cold.header, attention);
  for (size_t i = 0; i < gains.size(); ++i) out.facts[i].gain = gains[i];
  return out;
}

std::optional<ColdForm> PageCooler::Cool(const PageName& name, const SharedBytes& header,
                                         std::span<const SharedBytes> bodies) const {
  const std::shared_ptr<const Space> space = spaces_.Find(name.space);
  if (space == nullptr || space->cold == nullptr || space->calibration_missing) return std::nullopt;
  const Time begin = Clock::Real().Now();
  absl::StatusOr<ColdForm> cold = Make(*space, name, header, bodies);
  if (!cold.ok()) {
    Log().debug("a page of space '{}' stays in its hot form: {}", space->name,
                std::string(cold.status().message()));
    return std::nullopt;
  }
  metrics_.ObserveCooling(Clock::Real().Now() - begin);
  return *std::move(cold);
}

}  // namespace kvstow
