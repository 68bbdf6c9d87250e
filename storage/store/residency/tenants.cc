#include "storage/store/residency/tenants.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

// After so many tenants whose pages cannot go, those of the next ones will not be able to either,
// and each costs a look.
constexpr size_t kMaxPayers = 64;

}  // namespace

Tenants::Row& Tenants::At(TenantId tenant) {
  while (rows_.size() <= tenant) {
    const auto id = static_cast<TenantId>(rows_.size());
    rows_.emplace_back();
    for (int r = 0; r < kResources; ++r) {
      rows_[id].place[r] = heaps_[r].size();
      heaps_[r].push_back(id);
      if (id == 1) SetLevel(kOnlyTenant, r);  // nobody needed it before
      SetLevel(id, r);
    }
  }
  return rows_[tenant];
}

void Tenants::Know(Row& row) {
  if (std::exchange(row.known, true)) return;
  ++known_;
  weights_ += row.share.weight;
}

void Tenants::SetShare(TenantId tenant, const TenantShare& share) {
  Row& row = At(tenant);
  Know(row);
  weights_ += share.weight - row.share.weight;
  for (int t = 0; t < kTiers; ++t) guaranteed_[t] += share.guarantee[t] - row.share.guarantee[t];
  row.share = share;
  SettleAll();
}

void Tenants::SetBudget(TierId t, uint64_t bytes, double guaranteed_part) {
  budgets_[Of(t)] = bytes;
  guaranteed_part_[Of(t)] = guaranteed_part;
  SettleAll();
}

void Tenants::SettleAll() {
  for (int t = 0; t < kTiers; ++t) {
    const double most = guaranteed_part_[t] * static_cast<double>(budgets_[t]);
    const auto all = static_cast<double>(guaranteed_[t]);
    scale_[t] = all <= most ? 1 : most / all;
  }
  for (TenantId tenant = 0; tenant < rows_.size(); ++tenant) Settle(tenant);
}

void Tenants::Count(TenantId tenant, const StoreUsage& page, uint64_t sign) {
  Row& row = At(tenant);
  Know(row);
  row.usage.Add(page, sign);
}

void Tenants::Settle(TenantId tenant) {
  if (rows_.size() == 1) return;  // it always pays
  for (int r = 0; r < kResources; ++r) SetLevel(tenant, r);
}

void Tenants::Reserve(TenantId tenant, TierId t, uint64_t bytes) {
  At(tenant).reserved[Of(t)] += bytes;
  if (rows_.size() > 1) SetLevel(tenant, static_cast<int>(t));
}

uint64_t Tenants::Held(TenantId tenant, TierId t) const {
  const Row* const row = Find(tenant);
  return row == nullptr ? 0 : row->usage.tiers[Of(t)].encoded_bytes + row->reserved[Of(t)];
}

uint64_t Tenants::LimitOf(TenantId tenant, TierId t) const {
  const Row* const row = Find(tenant);
  const uint64_t limit = row == nullptr ? 0 : row->share.limit[Of(t)];
  return limit == 0 ? UINT64_MAX : limit;
}

bool Tenants::IsFull(TenantId tenant) const {
  const Row* const row = Find(tenant);
  if (row == nullptr || row->share.pages == 0) return false;
  return row->usage.pages + row->page_room >= row->share.pages;
}

double Tenants::GuaranteeOf(const Row& row, TierId t) const {
  return scale_[Of(t)] * static_cast<double>(row.share.guarantee[Of(t)]);
}

bool Tenants::MayGive(TenantId tenant, TierId t, uint64_t bytes) const {
  const Row* const row = Find(tenant);
  if (row == nullptr || row->share.guarantee[Of(t)] == 0) return true;
  const uint64_t held = row->usage.tiers[Of(t)].encoded_bytes;
  const uint64_t going = row->promised[Of(t)] + bytes;
  return going <= held && static_cast<double>(held - going) >= GuaranteeOf(*row, t);
}

uint64_t Tenants::CapacityOf(TenantId tenant, TierId t) const {
  const Row* const row = Find(tenant);
  const uint64_t budget = budgets_[Of(t)];
  if (row == nullptr || !row->known || known_ <= 1) return budget;
  const double all = scale_[Of(t)] * static_cast<double>(guaranteed_[Of(t)]);
  const double rest = std::max(0.0, static_cast<double>(budget) - all);
  const auto share =
      static_cast<uint64_t>(GuaranteeOf(*row, t) + rest * row->share.weight / weights_);
  return std::min({share, budget, LimitOf(tenant, t)});
}

double Tenants::LevelOf(const Row& row, int resource) const {
  if (resource == kIndex) return static_cast<double>(row.usage.index_bytes) / row.share.weight;
  const auto held =
      static_cast<double>(row.usage.tiers[resource].encoded_bytes + row.reserved[resource]);
  return (held - GuaranteeOf(row, static_cast<TierId>(resource))) / row.share.weight;
}

void Tenants::Put(int resource, size_t place, TenantId tenant) {
  heaps_[resource][place] = tenant;
  rows_[tenant].place[resource] = place;
}

void Tenants::SetLevel(TenantId tenant, int resource) {
  const std::vector<TenantId>& heap = heaps_[resource];
  const auto level_at = [&](size_t place) { return rows_[heap[place]].level[resource]; };
  Row& row = rows_[tenant];
  const double level = row.level[resource] = LevelOf(row, resource);
  size_t at = row.place[resource];
  for (size_t up = (at - 1) / 2; at > 0 && level_at(up) < level; up = (at - 1) / 2) {
    Put(resource, at, heap[up]);
    at = up;
  }
  for (;;) {
    size_t down = 2 * at + 1;
    if (down >= heap.size()) break;
    if (down + 1 < heap.size() && level_at(down + 1) > level_at(down)) ++down;
    if (level_at(down) <= level) break;
    Put(resource, at, heap[down]);
    at = down;
  }
  Put(resource, at, tenant);
}

bool Tenants::VisitAbove(int resource, double floor, size_t most, Visit visit) const {
  const std::vector<TenantId>& heap = heaps_[resource];
  // Each place of the heap is below the one that leads to it.
  const auto is_lower = [&](size_t a, size_t b) {
    return rows_[heap[a]].level[resource] < rows_[heap[b]].level[resource];
  };
  std::vector<size_t> next = {0};
  for (; !next.empty() && most > 0; --most) {
    std::pop_heap(next.begin(), next.end(), is_lower);
    const size_t at = next.back();
    next.pop_back();
    if (!(rows_[heap[at]].level[resource] > floor)) return false;
    if (visit(heap[at])) return true;
    for (const size_t down : {2 * at + 1, 2 * at + 2}) {
      if (down >= heap.size()) continue;
      next.push_back(down);
      std::push_heap(next.begin(), next.end(), is_lower);
    }
  }
  return false;
}

double Tenants::LevelWith(TenantId tenant, int resource, double more) const {
  const Row* const row = Find(tenant);
  return row == nullptr ? more : row->level[resource] + more / row->share.weight;
}

void Tenants::VisitPayers(const Payers& payers, Visit visit) const {
  const auto& [resource, wanting, bytes, all] = payers;
  if (rows_.size() == 1) {
    visit(kOnlyTenant);
  } else if (all) {
    constexpr double kLowest = -std::numeric_limits<double>::infinity();
    VisitAbove(resource, kLowest, rows_.size(), visit);
  } else {
    double floor = 0;
    if (wanting.has_value()) {
      floor = std::max(floor, LevelWith(*wanting, resource, static_cast<double>(bytes)));
    }
    const auto visit_other = [&](TenantId tenant) {
      return tenant != payers.wanting && visit(tenant);
    };
    const bool taken = VisitAbove(resource, floor, kMaxPayers, visit_other);
    if (!taken && wanting.has_value()) visit(*wanting);
  }
}

bool Tenants::StaysFirst(const Payers& payers, TenantId payer, uint64_t going) const {
  if (rows_.size() == 1) return true;
  const int resource = payers.resource;
  const auto bytes = static_cast<double>(payers.bytes), less = -static_cast<double>(going);
  const std::optional<TenantId> wanting = payers.all ? std::nullopt : payers.wanting;
  // Nobody else may be above this.
  const double level = LevelWith(payer, resource, payer == wanting ? bytes + less : less);
  if (!payers.all && payer != wanting) {
    const double floor = wanting.has_value() ? LevelWith(*wanting, resource, bytes) : 0;
    if (level <= std::max(0.0, floor)) return false;
  }
  // Two of three may be the payer and who wants it.
  return !VisitAbove(resource, level, 3,
                     [&](TenantId tenant) { return tenant != payer && tenant != wanting; });
}

StoreUsage Tenants::usage(TenantId tenant) const {
  const Row* const row = Find(tenant);
  return row == nullptr ? StoreUsage{} : row->usage;
}

TenantShare Tenants::share(TenantId tenant) const {
  const Row* const row = Find(tenant);
  return row == nullptr ? TenantShare{} : row->share;
}

uint64_t Tenants::reserved(TenantId tenant, TierId t) const {
  const Row* const row = Find(tenant);
  return row == nullptr ? 0 : row->reserved[Of(t)];
}

absl::Status Tenants::CheckInvariants() const {
  for (int r = 0; r < kResources; ++r) {
    const std::vector<TenantId>& heap = heaps_[r];
    if (heap.size() != rows_.size()) return absl::InternalError("a heap of tenants lost one");
    for (size_t at = 0; at < heap.size(); ++at) {
      const Row& row = rows_[heap[at]];
      const bool settled = rows_.size() == 1 || row.level[r] == LevelOf(row, r);
      const bool in_order = at == 0 || rows_[heap[(at - 1) / 2]].level[r] >= row.level[r];
      if (row.place[r] == at && settled && in_order) continue;
      return absl::InternalError(absl::StrCat("tenant ", heap[at], " has a wrong place or level"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvstow
