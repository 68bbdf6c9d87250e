#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/device/host_buffer.h"
#include "kernels/device/host_kernels.h"
#include "kernels/device/score_plan.h"

namespace kvstow {
namespace {

class HostDeviceScorer final : public DeviceScorer {
 public:
  explicit HostDeviceScorer(gpu::ScorePlan plan) : plan_(std::move(plan)) {}

  absl::StatusOr<std::vector<std::optional<ScoreMap>>> Scores(
      std::span<const ScoreJob> pages) override {
    return ForEach<ScoreMap>(
        pages, [this](const PageToScore& page) { return plan_.policy().Scores(page); });
  }

  absl::StatusOr<std::vector<std::optional<Selection>>> Select(
      std::span<const ScoreJob> pages) override {
    return ForEach<Selection>(
        pages, [this](const PageToScore& page) { return plan_.policy().Select(page); });
  }

 private:
  template <typename Out, typename F>
  absl::StatusOr<std::vector<std::optional<Out>>> ForEach(std::span<const ScoreJob> pages,
                                                          const F& answer) const {
    KVSTOW_ASSIGN_OR_RETURN(const auto prepared,
                            plan_.Prepare(pages, [](const DeviceBuffer& buffer) {
                              return dynamic_cast<const HostBuffer*>(&buffer) != nullptr;
                            }));
    std::vector<std::optional<Out>> out(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      if (!prepared[i].has_value()) continue;
      const ScoreJob& page = pages[i];
      const auto* const raw = static_cast<const HostBuffer*>(page.raw);
      auto answered =
          answer(PageToScore{.spec = plan_.spec(),
                             .raw = raw->bytes().span().first(PageBytes(plan_.spec(), page.tokens)),
                             .tokens = page.tokens,
                             .first_position = page.first_position,
                             .columns = page.columns,
                             .protected_tokens = page.protected_tokens});
      if (absl::IsOutOfRange(answered.status())) continue;  // NaN or Inf
      if (!answered.ok()) return answered.status();
      out[i] = *std::move(answered);
    }
    return out;
  }

  const gpu::ScorePlan plan_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceScorer>> MakeHostScorer(const Recipe& recipe,
                                                             const KvSpec& spec) {
  KVSTOW_ASSIGN_OR_RETURN(gpu::ScorePlan plan, gpu::ScorePlan::Make(recipe, spec));
  return std::make_unique<HostDeviceScorer>(std::move(plan));
}

}  // namespace kvstow
