// Published policies, for comparison. All count bytes where the papers count objects of one size.
//
//   LRU        the item that was used longest ago
//   SLRU       Karedla et al. 1994: items that were used twice have 20 % of the room to themselves,
//              the share that is best for prefixes
//   ARC        Megiddo and Modha, FAST'03: recency and frequency lists whose shares follow the hits
//              in their ghosts
//   S3-FIFO    Yang et al., SOSP'23: a small FIFO of 10 %, a main FIFO with second chances, and a
//              ghost FIFO that sends returning items to the main one
//   W-TinyLFU  Einziger et al., TOS'17: a window of 1 %; beyond it an item stays if a sketch that
//              ages has counted more uses of it than of the one that it would displace
//   GDSF       Cherkasova 1998: uses x worth, plus an inflation that ages what is not used
//
// Each function makes a policy for a capacity; see EvictionPolicy.
#ifndef KVSTOW_STORAGE_POLICIES_LIST_POLICIES_H_
#define KVSTOW_STORAGE_POLICIES_LIST_POLICIES_H_

#include <cstdint>
#include <memory>

#include "storage/policies/eviction_policy.h"

namespace kvstow {

std::unique_ptr<EvictionPolicy> MakeLru(uint64_t capacity_bytes);
std::unique_ptr<EvictionPolicy> MakeSlru(uint64_t capacity_bytes);
std::unique_ptr<EvictionPolicy> MakeArc(uint64_t capacity_bytes);
std::unique_ptr<EvictionPolicy> MakeS3Fifo(uint64_t capacity_bytes);
std::unique_ptr<EvictionPolicy> MakeWTinyLfu(uint64_t capacity_bytes);
std::unique_ptr<EvictionPolicy> MakeGdsf(uint64_t capacity_bytes);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_POLICIES_LIST_POLICIES_H_
