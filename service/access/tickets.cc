#include "service/access/tickets.h"

#include <sys/random.h>

#include <utility>

namespace kvstow {

std::string Tickets::New(CallerPtr caller) {
  std::string ticket(kBytes, '\0');
  // Fewer bytes than were asked for would be no ticket: getrandom gives up to 256 at once.
  if (getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size())) return "";
  const Time now = clock_.Now();
  MutexLock lock(mu_);
  std::deque<std::string>& own = by_tenant_[caller->tenant];
  while (!own.empty()) {
    const auto oldest = tickets_.find(own.front());
    const bool used = oldest == tickets_.end();
    if (!used && oldest->second.until >= now && own.size() < kMostOfTenant) break;
    if (!used) tickets_.erase(oldest);
    own.pop_front();
  }
  own.push_back(ticket);
  tickets_[ticket] = {std::move(caller), now + life_};
  return ticket;
}

CallerPtr Tickets::Take(absl::string_view ticket) {
  MutexLock lock(mu_);
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return nullptr;
  CallerPtr caller = it->second.until >= clock_.Now() ? std::move(it->second.caller) : nullptr;
  tickets_.erase(it);
  return caller;
}

}  // namespace kvstow
