// Tells the streams that send the pages of a put how far the worker has filled them.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_TRANSPORT_PUT_PROGRESS_H_
#define KVSTOW_CLIENT_TRANSPORT_PUT_PROGRESS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/connection/raw_stream.h"

namespace kvstow {

class PutProgress {
 public:
  explicit PutProgress(uint32_t layers) : layers_(layers) {}

  // Returns the filled leading bytes of a page of `page_bytes`.
  size_t Ready(size_t page_bytes) const {
    MutexLock lock(mu_);
    return filled_ >= layers_ ? page_bytes : page_bytes / layers_ * filled_;
  }
  bool given_up() const {
    MutexLock lock(mu_);
    return given_up_;
  }

  // The worker calls these two; they wake the streams.
  void Fill(uint32_t layers) {
    {
      MutexLock lock(mu_);
      if (layers <= filled_) return;
      filled_ = std::min(layers, layers_);
    }
    RingAll();
  }
  void GiveUp() {
    {
      MutexLock lock(mu_);
      if (filled_ == layers_) return;
      given_up_ = true;
    }
    RingAll();
  }
  // Returns a bell for a stream that is about to begin.
  std::shared_ptr<StreamBell> NewBell() {
    MutexLock lock(mu_);
    return bells_.emplace_back(std::make_shared<StreamBell>());
  }

 private:
  void RingAll() {
    std::vector<std::shared_ptr<StreamBell>> bells;
    {
      MutexLock lock(mu_);
      bells = bells_;
    }
    for (const auto& bell : bells) bell->Ring();
  }

  const uint32_t layers_;
  mutable Mutex mu_;
  uint32_t filled_ KVSTOW_GUARDED_BY(mu_) = 0;
  bool given_up_ KVSTOW_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<StreamBell>> bells_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_PUT_PROGRESS_H_
