// How far the pages of a put are: between the worker that fills them and the streams that send
// them.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_PUT_PROGRESS_H_
#define KVSTOW_CLIENT_PUT_PROGRESS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/raw_stream.h"

namespace kvstow {

class PutProgress {
 public:
  explicit PutProgress(uint32_t layers) : layers_(layers) {}

  // Leading bytes that are there, of a page of so many.
  size_t Ready(size_t page_bytes) const {
    MutexLock lock(mu_);
    return filled_ >= layers_ ? page_bytes : page_bytes / layers_ * filled_;
  }
  bool given_up() const {
    MutexLock lock(mu_);
    return given_up_;
  }

  // What the worker says; the streams hear of it.
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
  // Of a stream that is about to begin.
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

#endif  // KVSTOW_CLIENT_PUT_PROGRESS_H_
