// The nodes of one client: the servers that its address names, of which one serves it at a time.
//
// Every attempt of every call asks current() where to go. A call that finds its node UNAVAILABLE
// tells Failed(), and its next attempt goes to another node. node_list.h says which node follows,
// and when a more preferred one is asked whether it serves again. Only calls move this on: a client
// that makes none asks nobody. A client of one address has one node, and nothing here costs it
// anything.
//
// Nodes of a name (dns:///NAME:PORT) are the addresses that the name has. Until it is resolved, and
// while it has none, the name itself is an address of the list. A thread resolves it, at first and
// after a node failed, at most once in kResolveAgain.
//
// Thread-safe. References to nodes stay valid as long as this.
#ifndef KVSTOW_CLIENT_CONNECTION_NODES_H_
#define KVSTOW_CLIENT_CONNECTION_NODES_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/client_options.h"
#include "client/connection/address_list.h"
#include "client/connection/lease_owners.h"
#include "client/connection/node.h"
#include "client/connection/node_list.h"

namespace kvstow {

class Nodes {
 public:
  static constexpr Duration kResolveAgain = std::chrono::seconds(10);

  struct Parts {
    // Makes a node. `name` is what its certificate must have; "" = the host of the address.
    std::function<std::unique_ptr<Node>(const std::string& address, const std::string& name)> make;
    // Asks a node whether it serves, and does not block. `answer` is called once, unless the client
    // closes.
    std::function<void(Node& node, std::function<void(bool serves)> answer)> ask;
    std::function<absl::StatusOr<std::vector<std::string>>(const std::string& name)> resolve =
        [](const std::string& name) { return Resolve(name); };
    std::function<OwnHost()> own = OwnHost::Read;  // asked where there are several addresses
    const Clock& clock = Clock::Real();
  };
  // At least one address.
  Nodes(std::vector<ListedAddress> listed, Parts parts);
  ~Nodes();

  // Returns whether the address names several servers, or a name that may.
  bool several() const { return several_; }
  // Returns the node that serves now.
  Node& current();
  // Takes the status of a call of `node` that failed. Returns whether the call should go to
  // current() at once: another node.
  bool Failed(Node& node, const absl::Status& status);

  ServingNode serving() const;

  // Returns what is wrong with the files of TLS. Without OK no call goes over a network.
  absl::Status status();

  // Leases are a node's.
  void NoteLease(const Node& node, uint64_t lease) {
    if (several_) leases_.Add(lease, node);
  }
  // Returns the lease as this node is told of it: 0 for another node's.
  uint64_t LeaseAt(const Node& node, uint64_t lease) const {
    if (!several_ || lease == 0) return lease;
    const Node* const owner = leases_.Find(lease);
    return owner == nullptr || owner == &node ? lease : 0;
  }
  // Returns whether this node may not know the lease: another client took it, maybe elsewhere.
  // EXPIRED then says nothing of the page.
  bool MayNotKnow(const Node& node, uint64_t lease) const {
    return several_ && lease != 0 && leases_.Find(lease) != &node;
  }

  // Closes every node; no other one becomes current afterwards.
  void Close();
  // Joins the threads of direct connections.
  void JoinDirect();

 private:
  struct Resolver;

  std::vector<std::string> Order() const KVSTOW_REQUIRES(mu_);
  Node& NodeAt(const std::string& address) KVSTOW_REQUIRES(mu_);
  void Suspect(Node& node);
  void AskIfDue(Time now);
  void Answered(Node& node, bool serves);
  Node* TakeCurrent() KVSTOW_REQUIRES(mu_);
  void WarnOf(const Node& failed, absl::string_view why, Time now) KVSTOW_REQUIRES(mu_);
  void ResolveSoon(Time now) KVSTOW_REQUIRES(mu_);
  void TakeResolved(const std::string& name, std::vector<std::string> addresses);

  const std::vector<ListedAddress> listed_;
  const Parts parts_;
  const bool several_;
  const OwnHost own_;
  LeaseOwners leases_;
  std::atomic<Node*> current_;
  std::atomic<Time> next_question_;  // of list_
  mutable Mutex mu_;
  NodeList list_ KVSTOW_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<Node>> nodes_ KVSTOW_GUARDED_BY(mu_);
  std::map<std::string, std::vector<std::string>> resolved_ KVSTOW_GUARDED_BY(mu_);  // by name
  std::shared_ptr<Resolver> resolver_;
  Time resolve_after_ KVSTOW_GUARDED_BY(mu_) = Time::min();
  Time warn_after_ KVSTOW_GUARDED_BY(mu_) = Time::min();
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_NODES_H_
