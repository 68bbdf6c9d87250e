// Tenants: how much each tenant of a store holds, and who pays when room is needed.
//
// The share of a tenant in a tier is its guarantee, and of the rest a part by its weight among
// those who want more (weighted max-min fairness). Nobody computes that share. A tenant's *level*
// in a tier is what it holds above its guarantee, divided by its weight. Whoever has the highest
// level pays. Bytes that always leave the highest level end with equal levels for all who want
// more, which is that share. A heap for each tier has the levels, so a change costs O(log tenants),
// and usually a few comparisons.
//
// The memory of the index is shared in the same way, as if it were a fourth tier (kIndex), without
// guarantees.
//
// Guarantees that add up to more than a tier can keep, which is its low watermark, count in
// proportion.
//
// Not thread-safe: Residency's lock guards it.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_TENANTS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_TENANTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "storage/segment.h"
#include "storage/store/residency/tenant_share.h"
#include "storage/store/residency/usage.h"

namespace kvstow {

class Tenants {
 public:
  static constexpr int kIndex = kTiers;

  explicit Tenants(const TierBytes& budgets) : budgets_(budgets) { At(kOnlyTenant); }

  void SetShare(TenantId tenant, const TenantShare& share);
  // Sets what a tier can hold, and which part of it can be guaranteed.
  void SetBudget(TierId t, uint64_t bytes, double guaranteed_part);

  // Counts pages in or out: `sign` is 1 or -1, wrapped around. Whoever counts them out and in again
  // at once calls it twice, and Settle once.
  void Count(TenantId tenant, const StoreUsage& page, uint64_t sign);
  void Settle(TenantId tenant);
  // Room of the tenant's in a tier: see Residency. `bytes` may be wrapped around.
  void Reserve(TenantId tenant, TierId t, uint64_t bytes);
  // Bytes that are about to leave a tier because others want the room.
  void Promise(TenantId tenant, TierId t, uint64_t bytes) { At(tenant).promised[Of(t)] += bytes; }
  // Pages of the tenant that are being put; `change` may be wrapped around.
  void ReservePage(TenantId tenant, uint64_t change) { At(tenant).page_room += change; }

  // Bytes in the tier and room in it.
  uint64_t Held(TenantId tenant, TierId t) const;
  // UINT64_MAX = any.
  uint64_t LimitOf(TenantId tenant, TierId t) const;
  // Returns whether the tenant may not have one page more than it has and puts.
  bool IsFull(TenantId tenant) const;
  // Returns whether others may take `bytes` from the tenant's in the tier.
  bool MayGive(TenantId tenant, TierId t, uint64_t bytes) const;
  // The part of the tier's budget that the tenant has when all want more, for its eviction policy.
  uint64_t CapacityOf(TenantId tenant, TierId t) const;

  // Those who pay for `bytes` in a tier (or kIndex) that `wanting` wants, in the order of their
  // turn: tenants with a higher level than it would have, and then itself. Without `wanting` they
  // are all who hold more than their guarantee. With `all` nobody is spared, and the highest level
  // comes first.
  struct Payers {
    int resource = 0;
    std::optional<TenantId> wanting{};
    uint64_t bytes = 0;
    bool all = false;
  };
  // Visits them until `visit` returns true.
  using Visit = absl::FunctionRef<bool(TenantId)>;
  void VisitPayers(const Payers& payers, Visit visit) const;
  // Returns whether it is still the turn of `payer`, the first of them, once it holds `going` bytes
  // less.
  bool StaysFirst(const Payers& payers, TenantId payer, uint64_t going) const;

  size_t size() const { return rows_.size(); }
  // Counts the tenants that have or had pages, or a share.
  size_t known() const { return known_; }
  StoreUsage usage(TenantId tenant) const;
  TenantShare share(TenantId tenant) const;
  uint64_t reserved(TenantId tenant, TierId t) const;

  // Checks the heaps. Fails with INTERNAL.
  absl::Status CheckInvariants() const;

 private:
  static constexpr int kResources = kTiers + 1;
  struct Row {
    TenantShare share;
    StoreUsage usage;
    TierBytes reserved{}, promised{};
    uint64_t page_room = 0;
    bool known = false;
    std::array<double, kResources> level{};
    std::array<size_t, kResources> place{};  // in heaps_
  };
  static size_t Of(TierId t) { return static_cast<size_t>(t); }

  Row& At(TenantId tenant);
  const Row* Find(TenantId tenant) const {
    return tenant < rows_.size() ? &rows_[tenant] : nullptr;
  }
  void Know(Row& row);
  double GuaranteeOf(const Row& row, TierId t) const;
  double LevelOf(const Row& row, int resource) const;
  double LevelWith(TenantId tenant, int resource, double more) const;  // bytes
  void SetLevel(TenantId tenant, int resource);
  void SettleAll();
  void Put(int resource, size_t place, TenantId tenant);
  // Visits up to `most` tenants with a level above `floor`, the highest first.
  bool VisitAbove(int resource, double floor, size_t most, Visit visit) const;

  std::vector<Row> rows_;
  std::array<std::vector<TenantId>, kResources> heaps_;  // the highest level first
  TierBytes budgets_;
  std::array<double, kTiers> guaranteed_part_{1, 1, 1};
  // Of all known tenants. scale_: the part of each guarantee that can be kept.
  TierBytes guaranteed_{};
  std::array<double, kTiers> scale_{1, 1, 1};
  double weights_ = 0;
  size_t known_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_TENANTS_H_
