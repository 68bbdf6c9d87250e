// Counters of the remote tier, since the server's start. Thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_COUNTERS_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace kvstow {

struct RemoteCounters {
  using Count = std::atomic<uint64_t>;
  Count asked_keys = 0, found_keys = 0;        // of look-ups, that were not here
  Count late_lookups = 0;                      // answered without the remote store
  Count fetched_pages = 0, fetched_bytes = 0;  // that entered the host tier
  Count coarser_pages = 0;                     // of them: refinements were missing
  Count missed_fetches = 0;                    // pages that a Get wanted and that did not come
  Count sent_pages = 0, sent_bytes = 0;
  Count already_there = 0;  // pages that another server had sent
  Count unsent_pages = 0;   // the queue was full, or the remote store did not take them
  Count over_budget = 0;    // pages that were not sent: their tenant sent all that it may
  Count sent_calibrations = 0, fetched_calibrations = 0;
  Count unwritten_purges = 0;  // rounds in which others were not told what was deleted here
  Count damaged_values = 0;    // foreign, torn, swapped or damaged; they were deleted
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_COUNTERS_H_
