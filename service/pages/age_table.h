// The rows of Admin's Ages: the content of pages, by tier and by the time since anybody asked for
// them.
//
// A free function; thread-safe.
#ifndef KVSTOW_SERVICE_PAGES_AGE_TABLE_H_
#define KVSTOW_SERVICE_PAGES_AGE_TABLE_H_

#include <cstdint>
#include <span>

#include "kvstow/v1/admin.pb.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

// Fills `out` from some of `pages` pages, all of them or a fair sample, and scales sums up to
// `pages`. Leaves out pages of an unknown space.
void TellAges(std::span<const PageSample> sample, uint64_t pages, const Spaces& spaces,
              v1::AgesResponse& out);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_AGE_TABLE_H_
