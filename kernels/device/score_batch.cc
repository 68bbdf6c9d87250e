#include "kernels/device/score_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvstow::gpu {
namespace {

size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

// Pages that are not refused, [pages of the launch].
bool IsAnswered(std::span<const uint8_t> refused, size_t page) {
  uint32_t word;
  std::memcpy(&word, refused.data() + page * sizeof(word), sizeof(word));
  return word == 0;
}

}  // namespace

ScoreBatch::ScoreBatch(const ScorePlan& plan, std::span<const ScoreJob> call,
                       std::span<const std::optional<PreparedPage>> prepared, Batch pages)
    : plan_(plan), pages_(std::move(pages)), fills_(prepared[pages_[0]]->fills) {
  launch_.layout = plan.LayoutOf(call[pages_[0]].tokens);
  launch_.pages = static_cast<uint32_t>(pages_.size());
  for (size_t i = 0; i < pages_.size(); ++i) {
    launch_.first_position[i] = call[pages_[i]].first_position;
  }
  AddInput(call, prepared);
  Arrange();
}

void ScoreBatch::AddInput(std::span<const ScoreJob> call,
                          std::span<const std::optional<PreparedPage>> prepared) {
  const uint32_t layers = launch_.layout.layers, tokens = launch_.layout.tokens;
  std::vector<uint32_t> counts(fills_.size() * pages_.size() * layers);
  for (size_t f = 0; f < fills_.size(); ++f) {
    for (size_t i = 0; i < pages_.size(); ++i) {
      std::ranges::copy(prepared[pages_[i]]->fills[f].counts,
                        counts.begin() + static_cast<ptrdiff_t>((f * pages_.size() + i) * layers));
    }
  }
  protected_at_ = Aligned(counts.size() * sizeof(uint32_t));
  refused_at_ = protected_at_ + Aligned(pages_.size() * tokens);
  input_.resize(refused_at_ + pages_.size() * sizeof(uint32_t));
  if (!counts.empty()) std::memcpy(input_.data(), counts.data(), counts.size() * sizeof(uint32_t));
  for (size_t i = 0; i < pages_.size(); ++i) {
    for (uint32_t t = 0; t < tokens; ++t) {
      input_[protected_at_ + i * tokens + t] =
          IsProtected(plan_.policy().protection(), call[pages_[i]].protected_tokens, tokens, t);
    }
  }
  for (uint32_t slot = 0; slot < plan_.given(); ++slot) {
    for (const size_t page : pages_) {
      const std::vector<float>& map = prepared[page]->given[slot].values;
      given_.insert(given_.end(), map.begin(), map.end());
    }
  }
}

void ScoreBatch::Arrange() {
  const ScoreLayout& layout = launch_.layout;
  page_keep_ = plan_.budget().scope == BudgetScope::kToken ? layout.tokens : layout.entries();
  keep_at_ = Aligned(input_.size());
  maps_at_ = keep_at_ + Aligned(launch_.pages * page_keep_);
  means_at_ =
      maps_at_ + Aligned(size_t{plan_.slots()} * launch_.pages * layout.entries() * sizeof(float));
  scratch_bytes_ = means_at_ + 2 * launch_.pages * layout.tokens * sizeof(float);
}

Piece ScoreBatch::last_scores() const {
  const size_t bytes = launch_.pages * launch_.layout.entries() * sizeof(float);
  return {maps_at_ + plan_.last() * bytes, bytes};
}

void ScoreBatch::PutScores(std::span<const uint8_t> refused, std::span<const uint8_t> last_scores,
                           std::span<std::optional<ScoreMap>> out) const {
  const ScoreLayout& layout = launch_.layout;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (!IsAnswered(refused, i)) continue;
    ScoreMap& map = out[pages_[i]].emplace(layout.layers, layout.tokens, layout.heads);
    const size_t bytes = map.values.size() * sizeof(float);
    std::memcpy(map.values.data(), last_scores.data() + i * bytes, bytes);
  }
}

void ScoreBatch::PutSelections(std::span<const uint8_t> refused, std::span<const uint8_t> kept,
                               std::span<std::optional<Selection>> out) const {
  const ScoreLayout& layout = launch_.layout;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (!IsAnswered(refused, i)) continue;
    const std::span<const uint8_t> own = kept.subspan(i * page_keep_, page_keep_);
    Selection chosen{layout.layers, layout.tokens, layout.heads, {own.begin(), own.end()}};
    if (plan_.budget().scope == BudgetScope::kToken) {
      chosen = ForAllHeads(chosen, layout.layers, layout.heads);
    }
    chosen.merge = plan_.budget().merge;
    out[pages_[i]] = std::move(chosen);
  }
}

std::vector<ScoreBatch> ScoreBatchesOf(const ScorePlan& plan, std::span<const ScoreJob> call,
                                       std::span<const std::optional<PreparedPage>> prepared) {
  std::vector<ScoreBatch> out;
  for (Batch& batch : BatchesOf(call)) {
    std::erase_if(batch, [&](size_t page) { return !prepared[page].has_value(); });
    if (!batch.empty()) out.emplace_back(plan, call, prepared, std::move(batch));
  }
  return out;
}

}  // namespace kvstow::gpu
