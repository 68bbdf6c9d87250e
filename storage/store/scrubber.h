// Scrubber: reads everything that a store holds, slowly and over and over. It finds damage at rest
// before the page is asked for, and while there may be another copy.
//
// The scrubber has its own thread. It asks the store page by page (TieredStore::Scrub), at no more
// than a given rate. A pass takes the pages that existed when it began, oldest first. The scrubber
// keeps its position only in memory. It is no use of a page and promotes nothing.
//
// The store outlives it. Thread-safe.
#ifndef KVSTOW_STORAGE_STORE_SCRUBBER_H_
#define KVSTOW_STORAGE_STORE_SCRUBBER_H_

#include <cstdint>
#include <thread>

#include "base/mutex.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class Scrubber {
 public:
  // Starts the thread. With `bytes_per_second` = 0 there is no thread, and it never reads anything.
  Scrubber(TieredStore& store, uint64_t bytes_per_second);
  ~Scrubber();  // ends after the page at hand
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

 private:
  void Run(uint64_t bytes_per_second);
  // Returns false when it is time to end.
  bool Pause(double seconds) KVSTOW_EXCLUDES(mu_);

  TieredStore& store_;
  Mutex mu_;
  CondVar ended_;
  bool end_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_SCRUBBER_H_
