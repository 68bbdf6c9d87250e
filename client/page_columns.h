// Attention columns in the form in which they travel.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PAGE_COLUMNS_H_
#define KVSTOW_CLIENT_PAGE_COLUMNS_H_

#include <cstdint>
#include <vector>

#include "client/client.h"
#include "kernels/importance/importance.h"

namespace kvstow {

// Query heads become the mean of their KV head; scores are rounded to F16, and beyond its range to
// its largest value. A column whose heads are no multiple of `kv_heads`, or which holds NaN, goes
// as it is: the server refuses it by name.
std::vector<PageColumn> PageColumnsOf(const AttentionColumns& columns, uint32_t kv_heads);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAGE_COLUMNS_H_
