// EvictionPolicy: chooses the next item that leaves a full store.
//
// An item is a page in a tier, or a block of a trace: an id and its bytes. A policy orders items
// and moves nothing. The owner of the bytes asks for a victim, frees all or some of its bytes, and
// tells the policy. A policy may remember evicted items (ghosts). A multiple of the items that the
// capacity holds bounds them.
//
// Deterministic: the same calls give the same victims. Each call is O(log n) or better, amortized.
// Not thread-safe. One conformance suite, tests/conformance/policy_conformance.h, runs on all
// policies.
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

  uint64_t bytes = 1;  // bytes of the item
  // The worth of a byte of the part that would go next, when the item is used again, relative to
  // other items: for a segment its gain over its bytes. It is 0 for an item that cannot be used at
  // present, because the previous page of its prompt is absent.
  double worth = 1;
  // The previous page of its prompt. It need not be in the policy.
  uint64_t parent = kNoParent;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // Adds a new item. The id may be in the policy only as a ghost. kNoParent is no id.
  virtual void Insert(uint64_t id, const PolicyItem& item) = 0;
  // Records a use of the item. This call and those below ignore an unknown id.
  virtual void Touch(uint64_t id) = 0;
  // Records that the item lost or got bytes, which is no use.
  virtual void Resize(uint64_t id, uint64_t bytes, double worth) = 0;
  // Records the parent of the item, which has become known.
  virtual void SetParent(uint64_t /*id*/, uint64_t /*parent*/) {}
  // Removes the item: by this policy's own choice (`evicted`), or for another reason.
  virtual void Remove(uint64_t id, bool evicted) = 0;
  // Sets the capacity from now on. This alone evicts nothing.
  virtual void SetCapacity(uint64_t /*bytes*/) {}
  // Hold marks an item that the caller will refuse until Release. Victim leaves it out, so the item
  // costs a step once and not at every decision. A use or a change may make Victim offer it
  // earlier. Release puts the item first in its list, because its turn had come.
  virtual void Hold(uint64_t id) = 0;
  virtual void Release(uint64_t id) = 0;
  // Returns the item to take bytes from next; the item stays until it is removed. Returns nothing
  // when `may_go` refuses all items that are not held. Every refused item costs a step.
  virtual std::optional<uint64_t> Victim(absl::FunctionRef<bool(uint64_t id)> may_go) = 0;
};

struct PolicyInfo {
  absl::string_view name, summary, source;
  std::unique_ptr<EvictionPolicy> (*make)(uint64_t capacity_bytes);
};
// Returns all policies; the first is the project's own.
std::span<const PolicyInfo> EvictionPolicies();
// Fails with INVALID_ARGUMENT, which lists the names.
absl::StatusOr<const PolicyInfo*> FindEvictionPolicy(absl::string_view name);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_EVICTION_POLICY_H_
