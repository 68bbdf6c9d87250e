// The addresses of a client: what ClientOptions::address says, and the order in which nodes are
// preferred.
//
//   unix:/run/kvstow/kvstow.sock,10.0.0.1:7380,10.0.0.2:7380
//   unix:/run/kvstow/kvstow.sock,dns:///kvstow.example:7380
//
// Each part between commas is HOST:PORT, unix:PATH or dns:///NAME:PORT. HOST:PORT is one node, even
// where HOST is a name of several hosts. dns:///NAME:PORT is a node for each address of NAME.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_ADDRESS_LIST_H_
#define KVSTOW_CLIENT_CONNECTION_ADDRESS_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow {

// A part of the list: HOST:PORT, which may have a name for HOST, or unix:PATH.
struct ListedAddress {
  std::string address;
  bool by_name = false;  // came as dns:///: each address of the name is a node
  bool operator==(const ListedAddress&) const = default;
};

// Splits the list. Leaves out an address that stands before it already. Fails with
// INVALID_ARGUMENT, which names the part, when a part is empty or is no address.
absl::StatusOr<std::vector<ListedAddress>> ParseAddresses(absl::string_view list);
// Returns the same, or the whole text as one address where it is no list: no call goes there.
std::vector<ListedAddress> ListedIn(const std::string& list);

// The host that the client runs on, as addresses may name it.
struct OwnHost {
  std::string name;                    // of gethostname()
  std::vector<std::string> addresses;  // of its interfaces, as numbers

  // Asks the system, and no name server.
  static OwnHost Read();
  // Returns whether `address` is reached within this host: a UNIX socket, loopback, or one of its
  // names and addresses.
  bool Has(absl::string_view address) const;
};

// Sorts addresses by preference: UNIX sockets, then this host, then the others. Addresses of one
// kind stay in their order.
std::vector<std::string> ByPreference(std::vector<std::string> addresses, const OwnHost& own);

// Sorts the addresses of one name in an order that differs from host to host and is always the same
// on one host. So clients spread over the nodes, and each node that goes or comes moves only its
// own part of them (rendezvous hashing).
std::vector<std::string> SpreadBy(absl::string_view host, std::vector<std::string> addresses);

// Returns "ADDRESS:PORT" of every address of the name in `host_port`, sorted. Asks name servers,
// and blocks for as long as they take. Fails with UNAVAILABLE when the name has none.
absl::StatusOr<std::vector<std::string>> Resolve(absl::string_view host_port);

// Returns the host of HOST:PORT, without the brackets of an IPv6 address; "" for anything else.
std::string HostOf(absl::string_view address);
// Returns whether nobody but this machine sees what is sent to the address.
bool StaysHere(absl::string_view address);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_ADDRESS_LIST_H_
