#include "service/pages/page_cooler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/page/encoded_page.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

// Takes the error that the first `present` segments of `hot` leave off the gains of `cold`: off its
// base, and what is more than the base gains off the levels behind it.
void CountErrorOf(const PageHeader& hot, size_t present, PageHeader& cold) {
  if (hot.exact) return;
  const double slabs = hot.head_dim_v > 0 ? 2.0 : 1.0;
  std::vector<double> left(hot.layers, slabs * hot.tokens);  // of each layer
  for (const SegmentInfo& s : std::span(hot.segments).first(present)) {
    for (uint32_t i = 0; i < s.layer_count; ++i) left[s.first_layer + i] -= s.gain / s.layer_count;
  }
  for (SegmentInfo& s : cold.segments) {
    double due = 0;
    for (uint32_t i = 0; i < s.layer_count; ++i) {
      due += std::max(0.0, left[s.first_layer + i]);
    }
    const double taken = std::min<double>(due, std::max(0.0f, s.gain));
    if (taken <= 0) continue;
    s.gain = static_cast<float>(s.gain - taken);
    for (uint32_t i = 0; i < s.layer_count; ++i) {
      double& layer = left[s.first_layer + i];
      layer -= std::max(0.0, layer) * taken / due;
    }
  }
}

}  // namespace

absl::StatusOr<EncodedPage> PageCooler::Encode(const Space& space, const PageHeader& hot,
                                               std::span<const SharedBytes> bodies,
                                               const AttentionColumns& columns) const {
  ByteBlock raw(PageBytes(hot.Geometry(), hot.tokens));
  KVSTOW_RETURN_IF_ERROR(DecodePage(hot, bodies, raw.span(), calibrations_));
  std::shared_ptr<const Codec> codec = space.fitted == nullptr ? nullptr : space.fitted->codec();
  if (codec == nullptr) codec = space.cold;
  KVSTOW_ASSIGN_OR_RETURN(EncodedPage cold, codec->Encode({.raw = raw.span(),
                                                           .tokens = hot.tokens,
                                                           .first_position = hot.first_position,
                                                           .key = hot.key,
                                                           .raw_digest = hot.raw_digest,
                                                           .columns = &columns}));
  if (cold.header.exact && !hot.exact) {
    return absl::OutOfRangeError("its values do not fit the cold recipe");
  }
  CountErrorOf(hot, bodies.size(), cold.header);
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
