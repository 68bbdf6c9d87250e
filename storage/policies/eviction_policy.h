// EvictionPolicy: which item of a full store goes next.
//
// An item is a page in a tier, or a block of a trace: an id and the bytes that it takes. A policy
// orders items and moves nothing: whoever owns the bytes asks for a victim, frees all or some of
// its bytes, and says so. What it remembers of items that were evicted (ghosts) is its own affair,
// and bounded by a multiple of the items that the capacity holds.
//
// Deterministic: the same calls give the same victims. Each call is O(log n) or better, amortized.
// Not thread-safe. One conformance suite, tests/conformance/policy_conformance.h, runs on all.
#ifndef KVSTOW_STORAGE_POLICIES_EVICTION_POLICY_H_
#define KVSTOW_STORAGE_POLICIES_EVICTION_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow {

struct PolicyItem {
  static constexpr uint64_t kNoParent = UINT64_MAX;

  uint64_t bytes = 1;  // that it takes
  // What a byte of the part that would go next is worth when the item is used again, relative to
  // other items: for a segment its gain over its bytes. 0 for what cannot be used at present, since
  // the page before it in its prompt is not there.
  double worth = 1;
  // The page before it in its prompt, which need not be in the policy.
  uint64_t parent = kNoParent;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A new item; the id must not be in the policy but as a ghost. kNoParent is no id.
  virtual void Insert(uint64_t id, const PolicyItem& item) = 0;
  // A use of it. An unknown id is ignored, here and below.
  virtual void Touch(uint64_t id) = 0;
  // It lost or got bytes, which is no use.
  virtual void Resize(uint64_t id, uint64_t bytes, double worth) = 0;
  // Its parent has become known.
  virtual void SetParent(uint64_t /*id*/, uint64_t /*parent*/) {}
  // It is gone: by this policy's own choice (`evicted`), or for another reason.
  virtual void Remove(uint64_t id, bool evicted) = 0;
  // It has so much room from now on; nothing is evicted by this alone.
  virtual void SetCapacity(uint64_t /*bytes*/) {}
  // The item will be refused until it is released: Victim leaves it out, so that it costs a step
  // once and not at every decision. It may be offered earlier when it is used or changed. Release
  // puts it first in its list, since its turn had come.
  virtual void Hold(uint64_t id) = 0;
  virtual void Release(uint64_t id) = 0;
  // The item to take bytes from next, which stays until it is removed; nothing when `may_go`
  // refuses all that are not held. Every item that is refused before one is found costs a step.
  virtual std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t id)> may_go) = 0;
};

struct PolicyInfo {
  absl::string_view name, summary, source;
  std::unique_ptr<EvictionPolicy> (*make)(uint64_t capacity_bytes);
};
// All of them; the first is the project's own.
std::span<const PolicyInfo> EvictionPolicies();
// INVALID_ARGUMENT lists the names.
absl::StatusOr<const PolicyInfo*> FindEvictionPolicy(absl::string_view name);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_EVICTION_POLICY_H_
