#include "storage/store/residency/rooms.h"

#include <algorithm>

namespace kvstow {
namespace {

// The bytes that leave each tier when a page makes room in `t`, or goes (no tier). A hot page may
// get its cold form in all tiers; at most all of it leaves.
TierBytes BytesGiven(const PageEntry& page, std::optional<TierId> t) {
  TierBytes given{};
  const bool everywhere = page.hot || !t.has_value();
  const TierId only = t.value_or(TierId::kGpu);
  for (size_t i = everywhere ? 0 : page.KeepIn(only); i < page.segment_count; ++i) {
    for (const TierId from : kAllTiers) {
      if ((everywhere || from == only) && page.segments()[i].tiers.Has(from)) {
        given[static_cast<size_t>(from)] += page.BytesOf(i);
      }
    }
  }
  return given;
}

bool MayGive(const Tenants& tenants, TenantId tenant, const TierBytes& bytes) {
  return std::all_of(std::begin(kAllTiers), std::end(kAllTiers), [&](TierId t) {
    const uint64_t gives = bytes[static_cast<size_t>(t)];
    return gives == 0 || tenants.MayGive(tenant, t, gives);
  });
}

bool HasTooManyPages(const Tenants& tenants, TenantId tenant) {
  const uint64_t most = tenants.share(tenant).pages;
  return most > 0 && tenants.usage(tenant).pages > most;
}

}  // namespace

Rooms::Answer Rooms::PayFor(const Payment& payment, Choose choose) {
  PageIndex* const index = &residency_.index_;
  const Tenants& tenants = residency_.index_.tenants();
  PageEntry* chosen = nullptr;
  TierBytes gives{};
  const auto visit = [&](TenantId tenant) {
    PageEntry* const page = choose(*index, tenant);
    if (page == nullptr) return false;
    gives = BytesGiven(*page, payment.tier);
    TierBytes loses = gives;
    if (tenant == payment.wanting && payment.tier.has_value()) {
      uint64_t& here = loses[static_cast<size_t>(*payment.tier)];
      here -= std::min(here, payment.bytes);
    }
    const bool freely = payment.by_force || (tenant == payment.wanting && !payment.moves);
    if (!freely && !MayGive(tenants, tenant, loses)) return false;
    chosen = page;
    return true;
  };
  const int resource = payment.tier.has_value() ? static_cast<int>(*payment.tier) : Tenants::kIndex;
  if (payment.own) {
    visit(*payment.wanting);
  } else {
    tenants.VisitPayers({.resource = resource,
                         .wanting = payment.wanting,
                         .bytes = payment.bytes,
                         .all = payment.by_force},
                        visit);
  }
  if (chosen == nullptr) return {};
  Answer answer{.is = Answer::Is::kPage, .room = {}, .page = Claim::Begin(residency_, chosen)};
  Claim::Promise(residency_, *answer.page, gives);
  return answer;
}

Rooms::Answer Rooms::Find(Wanted& wanted, Choose choose) {
  using Who = For::Who;
  const TierId t = wanted.tier;
  const auto at = static_cast<size_t>(t);
  MutexLock lock(residency_.mu_);
  const Tenants& tenants = residency_.index_.tenants();
  const Who who = wanted.by.who;
  const std::optional<TenantId> tenant = TenantOf(wanted.by);
  for (;;) {
    residency_.ReapLeases();
    const uint64_t held = residency_.Held(t) + wanted.bytes;
    const uint64_t room = std::min(wanted.limit, residency_.budget(t));
    const uint64_t own_room = tenant.has_value() ? tenants.LimitOf(*tenant, t) : UINT64_MAX;
    if (wanted.bytes > std::min(room, own_room)) return {};  // not even alone
    const bool fits_own =
        !tenant.has_value() || tenants.Held(*tenant, t) + wanted.bytes <= own_room;
    // Who only comes down to its own limit takes no room.
    const bool fits = held <= room || who == Who::kTenant;
    if (fits && fits_own) {
      TierBytes taken{};
      taken[at] = wanted.bytes;
      const TenantId owner = tenant.value_or(kOnlyTenant);
      residency_.Reserve(owner, taken);
      return {.is = Answer::Is::kRoom, .room = Room(&residency_, owner, taken), .page = {}};
    }
    // While the disk refuses removals, those of more pages make no room.
    const uint64_t busy = residency_.unerased_.busy_bytes();
    if (!fits && t == TierId::kDisk && residency_.unerased_.bytes() > busy) {
      return {.is = Answer::Is::kErase, .room = {}, .page = {}};
    }
    Answer answer = PayFor({.tier = t,
                            .wanting = tenant,
                            .bytes = wanted.bytes,
                            .own = !fits_own,
                            .moves = who == Who::kMove,
                            .by_force = who == Who::kOperator},
                           choose);
    if (answer.is == Answer::Is::kPage) return answer;
    const bool under_way = residency_.claims_ > 0 || residency_.reserved_[at] > 0 || busy > 0;
    if (wanted.wait == Wait::kNo || !under_way || --wanted.waits_left < 0) return {};
    residency_.changed_.Wait(residency_.mu_);
  }
}

std::optional<TenantId> Rooms::TenantOf(const For& by) const {
  using Who = For::Who;
  if (by.who == Who::kTenant) return by.id;
  if (by.who == Who::kSpace || by.who == Who::kMove) return residency_.index_.TenantOf(by.id);
  return std::nullopt;
}

std::vector<Claim> Rooms::FindMore(const Wanted& wanted, const Claim& first, ChooseMore choose) {
  using Who = For::Who;
  const TierId t = wanted.tier;
  const auto at = static_cast<size_t>(t);
  const Who who = wanted.by.who;
  std::vector<Claim> out;
  MutexLock lock(residency_.mu_);
  const Tenants& tenants = residency_.index_.tenants();
  const TenantId payer = first.tenant_;
  const std::optional<TenantId> wanting = TenantOf(wanted.by);
  const bool by_force = who == Who::kOperator;
  const bool freely = by_force || (payer == wanting && who != Who::kMove);
  const Tenants::Payers payers{
      .resource = static_cast<int>(t), .wanting = wanting, .bytes = wanted.bytes, .all = by_force};
  const auto low = static_cast<uint64_t>(residency_.options_.low_watermark * residency_.budget(t));
  const uint64_t held = residency_.Held(t) + wanted.bytes;
  // Else the tenant's own limit alone is in the way.
  const bool is_full = who != Who::kTenant && held > std::min(wanted.limit, residency_.budget(t));
  uint64_t going = first.promised_[at];
  for (PageEntry* const page : choose(residency_.index_, payer)) {
    const auto without = [going](uint64_t bytes) { return bytes - std::min(bytes, going); };
    const bool fits = !is_full || without(held) <= std::min(wanted.limit, low);
    const bool own = payer == wanting &&
                     without(tenants.Held(payer, t) + wanted.bytes) > tenants.LimitOf(payer, t);
    if (fits && !own) break;
    const bool its_turn = own || tenants.StaysFirst(payers, payer, going);
    const TierBytes gives = BytesGiven(*page, t);
    if (!its_turn || (!freely && !MayGive(tenants, payer, gives))) break;
    out.push_back(Claim::Begin(residency_, page));
    Claim::Promise(residency_, out.back(), gives);
    going += gives[at];
  }
  return out;
}

Rooms::Answer Rooms::FindForIndex(SpaceId space, Choose choose) {
  const uint64_t limit = residency_.options_.index_bytes;
  MutexLock lock(residency_.mu_);
  if (limit == 0 || residency_.index_.usage().index_bytes <= limit) {
    return {.is = Answer::Is::kRoom, .room = {}, .page = {}};
  }
  residency_.ReapLeases();
  Payment payment;
  if (space != 0) payment.wanting = residency_.index_.TenantOf(space);
  return PayFor(payment, choose);
}

Rooms::Answer Rooms::FindForPage(PendingName& name, Choose choose) {
  MutexLock lock(residency_.mu_);
  Tenants& tenants = residency_.index_.tenants();
  const TenantId tenant = residency_.index_.TenantOf(name.name_->space);
  if (!tenants.IsFull(tenant)) {
    tenants.ReservePage(tenant, 1);
    name.has_place_ = true;
    return {.is = Answer::Is::kRoom, .room = {}, .page = {}};
  }
  residency_.ReapLeases();
  return PayFor({.wanting = tenant, .own = true}, choose);
}

Rooms::Answer Rooms::FindForFewerPages(TenantId tenant, Choose choose) {
  MutexLock lock(residency_.mu_);
  if (!HasTooManyPages(residency_.index_.tenants(), tenant)) {
    return {.is = Answer::Is::kRoom, .room = {}, .page = {}};
  }
  residency_.ReapLeases();
  return PayFor({.wanting = tenant, .own = true}, choose);
}

bool Rooms::IsAboveHigh(TierId t) {
  MutexLock lock(residency_.mu_);
  residency_.ReapLeases();
  return residency_.Held(t) > residency_.options_.high_watermark * residency_.budget(t);
}

void Rooms::SetBudget(TierId t, uint64_t bytes) {
  MutexLock lock(residency_.mu_);
  residency_.budgets_[static_cast<size_t>(t)] = bytes;
  residency_.ceiling_[static_cast<size_t>(t)] = residency_.Held(t);
  residency_.index_.SetBudget(t, bytes, residency_.options_.low_watermark);
  residency_.changed_.NotifyAll();
}

void Rooms::SetShare(TenantId tenant, const TenantShare& share) {
  MutexLock lock(residency_.mu_);
  Tenants& tenants = residency_.index_.tenants();
  tenants.SetShare(tenant, share);
  std::vector<TierBytes>& ceilings = residency_.tenant_ceilings_;
  ceilings.resize(tenants.size(), TierBytes{});
  for (const TierId t : kAllTiers) {
    ceilings[tenant][static_cast<size_t>(t)] = tenants.Held(tenant, t);
  }
  residency_.changed_.NotifyAll();
}

std::vector<TenantId> Rooms::OverLimit(TierId t) {
  std::vector<TenantId> out;
  MutexLock lock(residency_.mu_);
  const Tenants& tenants = residency_.index_.tenants();
  for (TenantId tenant = 0; tenant < tenants.size(); ++tenant) {
    if (tenants.Held(tenant, t) > tenants.LimitOf(tenant, t)) out.push_back(tenant);
  }
  return out;
}

std::vector<TenantId> Rooms::WithTooManyPages() {
  std::vector<TenantId> out;
  MutexLock lock(residency_.mu_);
  const Tenants& tenants = residency_.index_.tenants();
  for (TenantId tenant = 0; tenant < tenants.size(); ++tenant) {
    if (HasTooManyPages(tenants, tenant)) out.push_back(tenant);
  }
  return out;
}

TenantShare Rooms::ShareOf(SpaceId space) {
  MutexLock lock(residency_.mu_);
  return residency_.index_.tenants().share(residency_.index_.TenantOf(space));
}

}  // namespace kvstow
