#include "client/connection/node_list.h"

#include <algorithm>
#include <utility>

namespace kvstow {

NodeList::NodeList(std::vector<std::string> order) {
  for (std::string& address : order) nodes_.push_back({.address = std::move(address)});
}

std::optional<size_t> NodeList::Find(absl::string_view address) const {
  const auto at = std::ranges::find(nodes_, address, &Node::address);
  if (at == nodes_.end()) return std::nullopt;
  return static_cast<size_t>(at - nodes_.begin());
}

// Takes the first node that does not rest, or the one that has rested longest.
void NodeList::ChooseAnother(Time now) {
  const auto awake =
      std::ranges::find_if(nodes_, [&](const Node& node) { return node.rests_until <= now; });
  const auto next =
      awake != nodes_.end() ? awake : std::ranges::min_element(nodes_, {}, &Node::rests_until);
  current_ = static_cast<size_t>(next - nodes_.begin());
  if (awake != nodes_.end()) ++changes_;
}

void NodeList::SetOrder(std::vector<std::string> order, Time now) {
  const std::string was = current();
  std::vector<Node> nodes;
  for (std::string& address : order) {
    const std::optional<size_t> known = Find(address);
    nodes.push_back(known ? nodes_[*known] : Node{.address = std::move(address)});
  }
  nodes_ = std::move(nodes);
  current_ = 0;
  if (const auto stays = Find(was); stays.has_value()) {
    current_ = *stays;
    return;
  }
  const uint64_t changes = changes_;
  ChooseAnother(now);
  changes_ = changes;  // nothing failed
}

bool NodeList::Failed(absl::string_view address, Time now) {
  if (const auto node = Find(address); node.has_value()) {
    nodes_[*node].rests_until = now + kRest;
    nodes_[*node].suspected = false;
    if (*node == current_) ChooseAnother(now);
  }
  return nodes_[current_].rests_until <= now;
}

void NodeList::Suspect(absl::string_view address) {
  if (const auto node = Find(address); node == current_) nodes_[current_].suspected = true;
}

std::optional<std::string> NodeList::NextQuestion(Time now) {
  if (now < next_question()) return std::nullopt;
  asking_ = true;
  if (std::exchange(nodes_[current_].suspected, false)) return current();
  const auto due =
      std::ranges::find_if(nodes_, [&](const Node& node) { return node.rests_until <= now; });
  return due->address;
}

void NodeList::Answered(absl::string_view address, bool serves, Time now) {
  asking_ = false;
  if (!serves) {
    Failed(address, now);
    return;
  }
  const std::optional<size_t> node = Find(address);
  if (!node.has_value()) return;
  nodes_[*node].rests_until = {};
  if (*node >= current_) return;
  current_ = *node;
  ++changes_;
}

Time NodeList::next_question() const {
  if (asking_) return Time::max();
  if (nodes_[current_].suspected) return Time::min();
  Time first = Time::max();
  for (size_t i = 0; i < current_; ++i) first = std::min(first, nodes_[i].rests_until);
  return first;
}

}  // namespace kvstow
