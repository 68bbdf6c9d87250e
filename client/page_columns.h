// Converts attention columns to the form in which they travel.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PAGE_COLUMNS_H_
#define KVSTOW_CLIENT_PAGE_COLUMNS_H_

#include <cstdint>
#include <vector>

#include "client/pages.h"
#include "kernels/importance/importance.h"

namespace kvstow {

// Takes the mean of the query heads of each KV head, and rounds scores to F16; a score beyond its
// range becomes its largest value. A column whose heads are no multiple of `kv_heads`, or one with
// NaN, goes as it is: the server refuses it by name.
std::vector<PageColumn> PageColumnsOf(const AttentionColumns& columns, uint32_t kv_heads);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAGE_COLUMNS_H_
