#include "client/connection/nodes.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr Duration kWarnAgain = std::chrono::seconds(10);

// A refusal that says when to come back is a busy server's: another one would only be busy next.
bool MeansAnotherNode(const absl::Status& status) {
  return absl::IsUnavailable(status) && !status.GetPayload(kPushbackKey).has_value();
}

std::vector<std::string> AddressesOf(const std::vector<ListedAddress>& listed, const OwnHost& own) {
  std::vector<std::string> out;
  for (const ListedAddress& one : listed) {
    if (std::ranges::find(out, one.address) == out.end()) out.push_back(one.address);
  }
  return ByPreference(std::move(out), own);
}

}  // namespace

// The thread that resolves names, as it knows the nodes: it may outlive them, since a name server
// may take its time.
struct Nodes::Resolver {
  Mutex mu;
  Nodes* nodes KVSTOW_GUARDED_BY(mu) = nullptr;  // null: they are gone
  std::atomic<bool> running = false;
};

Nodes::Nodes(std::vector<ListedAddress> listed, Parts parts)
    : listed_(std::move(listed)),
      parts_(std::move(parts)),
      several_(listed_.size() > 1 || listed_.front().by_name),
      own_(several_ ? parts_.own() : OwnHost()),
      list_(AddressesOf(listed_, own_)),
      resolver_(std::make_shared<Resolver>()) {
  {
    MutexLock lock(resolver_->mu);
    resolver_->nodes = this;
  }
  MutexLock lock(mu_);
  current_ = &NodeAt(list_.current());
  next_question_ = list_.next_question();
  ResolveSoon(parts_.clock.Now());
}

Nodes::~Nodes() {
  MutexLock lock(resolver_->mu);
  resolver_->nodes = nullptr;
}

Node& Nodes::NodeAt(const std::string& address) {
  std::unique_ptr<Node>& node = nodes_[address];
  if (node == nullptr) {
    const bool listed =
        std::ranges::find(listed_, address, &ListedAddress::address) != listed_.end();
    const auto name = std::ranges::find_if(resolved_, [&](const auto& of) {
      return std::ranges::find(of.second, address) != of.second.end();
    });
    node = parts_.make(address, listed || name == resolved_.end() ? "" : HostOf(name->first));
  }
  return *node;
}

absl::Status Nodes::status() {
  MutexLock lock(mu_);
  const auto over_network = std::ranges::find_if(
      listed_, [](const ListedAddress& one) { return !HostOf(one.address).empty(); });
  if (over_network == listed_.end()) return absl::OkStatus();
  return NodeAt(over_network->address).channels.status();
}

Node& Nodes::current() {
  if (several_ && next_question_.load() != Time::max()) AskIfDue(parts_.clock.Now());
  return *current_.load();
}

bool Nodes::Failed(Node& node, const absl::Status& status) {
  if (!several_) return false;
  if (absl::IsDeadlineExceeded(status)) {
    Suspect(node);
    return false;
  }
  if (!MeansAnotherNode(status)) return false;
  const Time now = parts_.clock.Now();
  bool another = false;
  {
    MutexLock lock(mu_);
    if (closed_) return false;
    another = list_.Failed(node.address, now);
    if (TakeCurrent() != nullptr) WarnOf(node, status.message(), now);
    ResolveSoon(now);
    if (!another || &node == current_.load()) return another;
  }
  node.channels.Rest();
  return true;
}

// A node that is late may be busy, or gone without a word.
void Nodes::Suspect(Node& node) {
  {
    MutexLock lock(mu_);
    list_.Suspect(node.address);
    next_question_ = list_.next_question();
  }
  AskIfDue(parts_.clock.Now());
}

// Brings current_ and next_question_ in line with the list. Returns the node that was current, if
// another one is now.
Node* Nodes::TakeCurrent() {
  next_question_ = list_.next_question();
  Node* const was = current_.load();
  Node* const is = &NodeAt(list_.current());
  if (was == is) return nullptr;
  current_ = is;
  return was;
}

// While no node serves, calls try one after the other: the log says that once in a while.
void Nodes::WarnOf(const Node& failed, absl::string_view why, Time now) {
  if (now < warn_after_) return;
  warn_after_ = now + kWarnAgain;
  Log().warn("{} does not serve, calls go to {}: {}", failed.address, current_.load()->address,
             std::string(why));
}

void Nodes::AskIfDue(Time now) {
  Node* node = nullptr;
  {
    MutexLock lock(mu_);
    const auto address = closed_ ? std::nullopt : list_.NextQuestion(now);
    next_question_ = list_.next_question();
    if (!address.has_value()) return;
    node = &NodeAt(*address);
  }
  parts_.ask(*node, [this, node](bool serves) { Answered(*node, serves); });
}

void Nodes::Answered(Node& node, bool serves) {
  const Time now = parts_.clock.Now();
  {
    MutexLock lock(mu_);
    if (closed_) return;
    list_.Answered(node.address, serves, now);
    const Node* const was = TakeCurrent();
    if (serves) {
      if (was != nullptr) Log().info("{} serves again: calls go there", node.address);
      return;
    }
    if (was != nullptr) WarnOf(node, "it was late, and says nothing of its health", now);
    ResolveSoon(now);
    if (&node == current_.load()) return;
  }
  node.channels.Rest();
}

ServingNode Nodes::serving() const {
  MutexLock lock(mu_);
  return {.address = list_.current(), .changes = list_.changes()};
}

void Nodes::ResolveSoon(Time now) {
  std::vector<std::string> names;
  for (const ListedAddress& one : listed_) {
    if (one.by_name) names.push_back(one.address);
  }
  if (names.empty() || now < resolve_after_ || resolver_->running.exchange(true)) return;
  resolve_after_ = now + kResolveAgain;
  auto thread = StartThread("kvstow-dns", [names, resolve = parts_.resolve, to = resolver_] {
    for (const std::string& name : names) {
      auto addresses = resolve(name);
      MutexLock lock(to->mu);
      if (to->nodes == nullptr) return;
      if (addresses.ok()) {
        to->nodes->TakeResolved(name, *std::move(addresses));
      } else {
        Log().warn("dns:///{}: {}", name, std::string(addresses.status().message()));
      }
    }
    to->running = false;
  });
  if (thread.ok()) {
    thread->detach();
  } else {
    resolver_->running = false;
  }
}

std::vector<std::string> Nodes::Order() const {
  std::vector<ListedAddress> out;
  for (const ListedAddress& one : listed_) {
    const auto found = one.by_name ? resolved_.find(one.address) : resolved_.end();
    if (found == resolved_.end()) {
      out.push_back(one);
      continue;
    }
    for (std::string& address : SpreadBy(own_.name, found->second)) {
      out.push_back({.address = std::move(address)});
    }
  }
  return AddressesOf(out, own_);
}

void Nodes::TakeResolved(const std::string& name, std::vector<std::string> addresses) {
  Node* was = nullptr;
  {
    MutexLock lock(mu_);
    if (closed_ || addresses.empty()) return;
    resolved_[name] = std::move(addresses);
    list_.SetOrder(Order(), parts_.clock.Now());
    was = TakeCurrent();
    if (was != nullptr) Log().info("calls go to {}, of {}", list_.current(), name);
  }
  if (was != nullptr) was->channels.Rest();
}

void Nodes::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  for (const auto& [address, node] : nodes_) node->Close();
}

// The threads may ask for the current node.
void Nodes::JoinDirect() {
  std::vector<Node*> all;
  {
    MutexLock lock(mu_);
    for (const auto& [address, node] : nodes_) all.push_back(node.get());
  }
  for (Node* const node : all) node->direct.Join();
}

}  // namespace kvstow
