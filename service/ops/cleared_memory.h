// Memory that is cleared when it is freed, so that pages of a tenant who is gone are too.
//
// Pages pass through many hands: received bytes, staging, codecs, tiers, replies. All of them are
// blocks of the allocator, jemalloc, whose option "junk:free" overwrites a block when it is freed.
#ifndef KVSTOW_SERVICE_OPS_CLEARED_MEMORY_H_
#define KVSTOW_SERVICE_OPS_CLEARED_MEMORY_H_

#include "absl/status/status.h"

namespace kvstow {

// Lets freed memory be cleared from now on. jemalloc reads its options before main(), so this
// starts the program `argv` again in its own place, once; call it before anything else is done.
// Returns OK in the program that was started so. FAILED_PRECONDITION: MALLOC_CONF says otherwise.
// UNIMPLEMENTED: another allocator is in use, or the program cannot be started again.
absl::Status ClearFreedMemory(char* const* argv);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_CLEARED_MEMORY_H_
