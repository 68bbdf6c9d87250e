#include "service/fitting/fit_sample.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/digest.h"

namespace kvstow {
namespace {

constexpr uint64_t kHeldOutShare = 5;  // one token in so many

// Returns up to `most` pages in their hot form, by no order. They are spread over all of the
// space's: it asks for pages in the order of the digests of their keys.
std::vector<PlannedPage> HotPages(TieredStore& store, SpaceId space, size_t most) {
  std::vector<PageName> names = store.residency().Pages(space);
  std::vector<std::pair<uint64_t, size_t>> order;
  order.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) order.emplace_back(Xxh3(AsBytes(names[i].key)), i);
  std::ranges::sort(order);
  std::vector<PlannedPage> out;
  for (const auto& [digest, i] : order) {
    if (out.size() == most) break;
    absl::StatusOr<PageFacts> facts = store.residency().Find(names[i]);
    if (facts.ok() && facts->hot) out.push_back({std::move(names[i]), *std::move(facts)});
  }
  return out;
}

// Takes pages until a limit is reached; `full` is set where that is the bytes'.
std::vector<PlannedPage> FirstOf(std::span<const PlannedPage> pages, uint64_t most_tokens,
                                 uint64_t& tokens, uint64_t& bytes_left, bool& full) {
  std::vector<PlannedPage> out;
  for (const PlannedPage& page : pages) {
    const uint64_t bytes = page.facts.stored_bytes();
    if (tokens >= most_tokens) break;
    full = bytes > bytes_left;
    if (full) break;
    tokens += page.facts.tokens;
    bytes_left -= bytes;
    out.push_back(page);
  }
  return out;
}

std::vector<FitPage> Read(TieredStore& store, std::span<const PlannedPage> pages,
                          uint64_t& tokens) {
  std::vector<FitPage> out;
  for (const PlannedPage& page : pages) {
    std::vector<uint16_t> indices(page.facts.segments.size());
    std::iota(indices.begin(), indices.end(), uint16_t{0});
    FitPage read{.header = page.facts.header, .bodies = {}};
    for (auto& body : store.Read(page.name, page.facts.number, indices)) {
      if (body.ok()) read.bodies.push_back(*std::move(body));
    }
    if (read.bodies.size() != indices.size()) continue;
    tokens += page.facts.tokens;
    out.push_back(std::move(read));
  }
  return out;
}

}  // namespace

FitSamplePlan PlanFitSample(TieredStore& store, SpaceId space, const FitSampleLimits& limits) {
  std::vector<PlannedPage> pages = HotPages(store, space, limits.pages);
  std::ranges::sort(pages, {}, [](const PlannedPage& page) { return page.facts.number; });
  const auto tokens_of = [](uint64_t sum, const PlannedPage& page) {
    return sum + page.facts.tokens;
  };
  const uint64_t all = std::accumulate(pages.begin(), pages.end(), uint64_t{0}, tokens_of);
  const uint64_t apart = std::min(limits.held_out_tokens, all / kHeldOutShare);
  size_t first = pages.size();
  for (uint64_t tokens = 0; first > 0 && tokens < apart; --first) {
    tokens += pages[first - 1].facts.tokens;
  }
  const std::span held_out = std::span<const PlannedPage>(pages).subspan(first);
  const std::span older = std::span(pages).first(first);
  // By the digests of their keys: a part of the old pages is spread over all of them.
  std::ranges::sort(older, {},
                    [](const PlannedPage& page) { return Xxh3(AsBytes(page.name.key)); });
  FitSamplePlan out;
  uint64_t bytes_left = limits.bytes;
  out.held_out =
      FirstOf(held_out, limits.held_out_tokens, out.held_out_tokens, bytes_left, out.full);
  out.fitted_on = FirstOf(older, limits.tokens, out.tokens, bytes_left, out.full);
  return out;
}

FitSample ReadFitSample(TieredStore& store, const FitSamplePlan& plan) {
  FitSample out;
  out.held_out = Read(store, plan.held_out, out.held_out_tokens);
  out.fitted_on = Read(store, plan.fitted_on, out.tokens);
  return out;
}

}  // namespace kvstow
