// SendQueue: the pages that wait to be sent to a remote store, and which of them goes next.
//
// A server often makes pages faster than it may send them. So what goes first decides what other
// servers find:
//
//   1. Pages that were used again while they waited, in the order in which they were.
//   2. The newest prompt, its leading pages first: a page is worth nothing without those before it.
//
// A full queue forgets the last page of the oldest prompt. docs/SCALE.md has what this order is
// worth.
//
// `Name` is what names a page. Not thread-safe.
#ifndef KVSTOW_STORAGE_POLICIES_SEND_QUEUE_H_
#define KVSTOW_STORAGE_POLICIES_SEND_QUEUE_H_

#include <cstddef>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvstow {

template <typename Name>
class SendQueue {
 public:
  // Holds at most so many pages, 1 at least.
  explicit SendQueue(size_t most) : most_(most) {}

  // Adds a page, which follows the page `parent` in its prompt. A parent that does not wait is no
  // parent. A page that waits already stays where it is. Returns whether another page had to go.
  bool Add(const Name& name, const Name& parent) {
    if (places_.contains(name)) return false;
    const bool full = places_.size() >= most_;
    if (full) DropOldest();
    const auto before = places_.find(parent);
    const bool follows = before != places_.end() && before->second.prompt != prompts_.end();
    if (!follows) prompts_.emplace_front();
    const auto prompt = follows ? before->second.prompt : prompts_.begin();
    prompt->push_back(name);
    places_.emplace(name, Place{prompt, std::prev(prompt->end())});
    return full;
  }

  // A page was used again. Nothing, if it does not wait.
  void Use(const Name& name) {
    const auto found = places_.find(name);
    if (found == places_.end() || found->second.prompt == prompts_.end()) return;
    Place& place = found->second;
    used_.splice(used_.end(), *place.prompt, place.page);
    if (place.prompt->empty()) prompts_.erase(place.prompt);
    place.prompt = prompts_.end();
  }

  // Takes the next pages, at most so many.
  std::vector<Name> Take(size_t most) {
    std::vector<Name> out;
    while (out.size() < most && !places_.empty()) {
      const bool used = !used_.empty();
      Pages& from = used ? used_ : prompts_.front();
      out.push_back(std::move(from.front()));
      places_.erase(out.back());
      from.pop_front();
      if (!used && from.empty()) prompts_.pop_front();
    }
    return out;
  }

  size_t size() const { return places_.size(); }

 private:
  using Pages = std::list<Name>;
  using Prompts = std::list<Pages>;  // newest first; none is empty
  struct Place {
    typename Prompts::iterator prompt;  // prompts_.end(): the page is in used_
    typename Pages::iterator page;
  };

  void DropOldest() {
    const bool used = prompts_.empty();
    Pages& from = used ? used_ : prompts_.back();
    places_.erase(from.back());
    from.pop_back();
    if (!used && from.empty()) prompts_.pop_back();
  }

  const size_t most_;
  Pages used_;
  Prompts prompts_;
  absl::flat_hash_map<Name, Place> places_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_SEND_QUEUE_H_
