// Chooses the node that serves a client: pure logic over addresses and times.
//
// Addresses stand in order of preference. One of them is current; at first that is the first. When
// the current node fails, the first one that did not fail lately takes its place. A node that
// failed is left alone for kRest. Then the list names it for a question (NextQuestion), one node at
// a time, and only nodes that are preferred to the current one. A good answer makes it current
// again. When all nodes failed lately, the one whose rest ends first is current: calls find out.
//
// Not thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_NODE_LIST_H_
#define KVSTOW_CLIENT_CONNECTION_NODE_LIST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace kvstow {

class NodeList {
 public:
  static constexpr Duration kRest = std::chrono::seconds(2);

  // At least one address, each once.
  explicit NodeList(std::vector<std::string> order);

  const std::string& current() const { return nodes_[current_].address; }
  // How often another node became current because one failed or came back.
  uint64_t changes() const { return changes_; }

  // Takes another list of addresses, at least one. A node that stays keeps what is known of it. The
  // current node stays current unless it is gone.
  void SetOrder(std::vector<std::string> order, Time now);

  // A call of the node failed in a way that another node may not. Returns whether the current node
  // is worth a try at once.
  bool Failed(absl::string_view address, Time now);

  // The current node may have failed: it is the next to be asked.
  void Suspect(absl::string_view address);
  // Returns the node to ask now, if any. Answered must follow.
  std::optional<std::string> NextQuestion(Time now);
  // Takes the answer: whether the node serves.
  void Answered(absl::string_view address, bool serves, Time now);
  // Returns when NextQuestion has an answer, unless something happens before; Time::max(): never.
  Time next_question() const;

 private:
  struct Node {
    std::string address;
    Time rests_until = {};
    bool suspected = false;
  };
  std::optional<size_t> Find(absl::string_view address) const;
  void ChooseAnother(Time now);

  std::vector<Node> nodes_;  // in order of preference
  size_t current_ = 0;
  uint64_t changes_ = 0;
  bool asking_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_NODE_LIST_H_
