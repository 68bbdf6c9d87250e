#include "service/pages/page_cooler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/run_codecs.h"
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

// The codec of a space's cold pages now.
std::shared_ptr<const Codec> ColdCodecOf(const Space& space) {
  std::shared_ptr<const Codec> codec = space.fitted == nullptr ? nullptr : space.fitted->codec();
  return codec != nullptr ? codec : space.cold;
}

bool HasColdForm(const std::shared_ptr<const Space>& space) {
  return space != nullptr && space->cold != nullptr && !space->calibration_missing;
}

bool IsCalibrated(const Codec& codec) {
  const auto needs = CalibrationNeeds(codec.recipe());
  return needs.ok() && needs->has_value();
}

}  // namespace

// A page on its way from one form to the other.
struct PageCooler::Job {
  size_t place = 0;  // among the pages of the call
  std::shared_ptr<const Space> space;
  std::shared_ptr<const Codec> codec;
  PageHeader hot;
  std::span<const SharedBytes> present;  // segments of `hot`
  PooledColumns attention;
  AttentionColumns columns;
  ByteBlock raw;  // empty: the GPU needs none
  absl::StatusOr<EncodedPage> cold = absl::UnknownError("not coded yet");

  PageToEncode page() {
    return {.raw = raw.span(),
            .tokens = hot.tokens,
            .first_position = hot.first_position,
            .key = hot.key,
            .raw_digest = hot.raw_digest,
            .columns = &columns};
  }
  void StaysHot(const absl::Status& why) const {
    Log().debug("a page of space '{}' stays in its hot form: {}", space->name,
                std::string(why.message()));
  }
};

absl::Status PageCooler::Begin(const HotForm& page, Job& job) const {
  job.codec = ColdCodecOf(*job.space);
  KVSTOW_ASSIGN_OR_RETURN(job.hot, ParsePageHeader(page.header.span()));
  job.present = page.bodies;
  job.attention = attention_.Find(page.name, job.hot.raw_digest);
  job.columns = ColumnsOf(job.attention);
  return coder_.Recodes(*job.codec, job.hot) ? absl::OkStatus() : Decode(job);
}

absl::Status PageCooler::Decode(Job& job) const {
  job.raw = ByteBlock(PageBytes(job.hot.Geometry(), job.hot.tokens));
  return DecodePage(job.hot, job.present, job.raw.span(), calibrations_);
}

absl::StatusOr<EncodedPage> PageCooler::EncodeOnCpu(Job& job) const {
  if (job.raw.size() == 0) KVSTOW_RETURN_IF_ERROR(Decode(job));
  return job.codec->Encode(job.page());
}

void PageCooler::Encode(std::span<Job> jobs) const {
  std::vector<DeviceCoder::PageOfCodec> pages;
  for (Job& job : jobs) pages.push_back({job.codec.get(), job.page(), &job.hot, job.present});
  std::vector<std::optional<EncodedPage>> on_gpu = coder_.Encode(pages);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (coder_.on() && IsCalibrated(*jobs[i].codec)) {
      metrics_.CountDevice(CodecWay::kEncode, on_gpu[i].has_value());
    }
    jobs[i].cold = on_gpu[i].has_value() ? absl::StatusOr<EncodedPage>(*std::move(on_gpu[i]))
                                         : EncodeOnCpu(jobs[i]);
    jobs[i].raw = {};
  }
}

absl::StatusOr<ColdForm> PageCooler::End(Job& job) const {
  KVSTOW_ASSIGN_OR_RETURN(EncodedPage cold, std::move(job.cold));
  if (cold.header.exact && !job.hot.exact) {
    return absl::OutOfRangeError("its values do not fit the cold recipe");
  }
  CountErrorOf(job.hot, job.present.size(), cold.header);
  ColdForm out{.header = SharedBytes::Take(SerializePageHeader(cold.header)),
               .whole = cold.header.exact,
               .facts = FactsOf(cold.header),
               .bodies = std::move(cold.segments)};
  const std::vector<float> gains = WorthyGains(cold.header, job.attention);
  for (size_t i = 0; i < gains.size(); ++i) out.facts[i].gain = gains[i];
  return out;
}

size_t PageCooler::CoolFrom(size_t first, std::span<const HotForm> pages,
                            std::vector<std::optional<ColdForm>>& out) const {
  const Time begin = Clock::Real().Now();
  std::vector<Job> jobs;
  size_t end = first;
  for (uint64_t bytes = 0; end < pages.size() && bytes < coder_.options().most_batch_bytes; ++end) {
    Job job{.place = end, .space = spaces_.Find(pages[end].name.space)};
    if (!HasColdForm(job.space)) continue;
    if (const absl::Status begun = Begin(pages[end], job); !begun.ok()) {
      job.StaysHot(begun);
      continue;
    }
    bytes += PageBytes(job.hot.Geometry(), job.hot.tokens);
    jobs.push_back(std::move(job));
  }
  Encode(jobs);
  const Duration took = Clock::Real().Now() - begin;
  for (Job& job : jobs) {
    absl::StatusOr<ColdForm> cold = End(job);
    if (!cold.ok()) {
      job.StaysHot(cold.status());
      continue;
    }
    metrics_.ObserveCooling(took / jobs.size());
    out[job.place] = *std::move(cold);
  }
  return end;
}

std::vector<std::optional<ColdForm>> PageCooler::CoolAll(std::span<const HotForm> pages) const {
  std::vector<std::optional<ColdForm>> out(pages.size());
  for (size_t first = 0; first < pages.size();) first = CoolFrom(first, pages, out);
  return out;
}

std::optional<ColdForm> PageCooler::Cool(const PageName& name, const SharedBytes& header,
                                         std::span<const SharedBytes> bodies) const {
  const HotForm page{.name = name, .header = header, .bodies = {bodies.begin(), bodies.end()}};
  return std::move(CoolAll({&page, 1})[0]);
}

std::vector<SpaceId> PageCooler::Together(SpaceId id) const {
  std::vector<SpaceId> out;
  const std::shared_ptr<const Space> space = spaces_.Find(id);
  if (!coder_.on() || !HasColdForm(space)) return out;
  const std::shared_ptr<const Codec> codec = ColdCodecOf(*space);
  if (!coder_.Takes(*codec)) return out;
  for (const std::shared_ptr<const Space>& other : spaces_.All()) {
    if (HasColdForm(other) && coder_.TakesTogether(*codec, *ColdCodecOf(*other))) {
      out.push_back(other->id);
    }
  }
  return out;
}

ColdForms PageCooler::Forms() const {
  return {.make = [this](std::span<const HotForm> pages) { return CoolAll(pages); },
          .together = [this](SpaceId space) { return Together(space); },
          .most_pages = coder_.on() ? DeviceCoder::kMostPages : 1,
          .most_bytes = coder_.options().most_batch_bytes};
}

}  // namespace kvstow
