#include "client/connection/open_calls.h"

namespace kvstow {

bool OpenCalls::Add(OpenStream* stream) {
  MutexLock lock(mu_);
  if (closed_) return false;
  streams_.insert(stream);
  return true;
}

void OpenCalls::Remove(OpenStream* stream) {
  MutexLock lock(mu_);
  streams_.erase(stream);
  ++going_;
}

void OpenCalls::Gone() {
  MutexLock lock(mu_);
  --going_;
  ended_.NotifyAll();  // under the lock, as below
}

// Holds the lock, so that no stream goes while it is being cancelled. Cancel() only posts.
void OpenCalls::CancelStreams(const grpc::Channel* channel, const absl::Status& why) {
  MutexLock lock(mu_);
  for (OpenStream* stream : streams_) {
    if (channel == nullptr || stream->channel() == channel) stream->Cancel(why);
  }
}

void OpenCalls::Close() {
  {
    MutexLock lock(mu_);
    closed_ = true;
  }
  CancelStreams(nullptr, absl::CancelledError("the client was closed"));
}

bool OpenCalls::closed() const {
  MutexLock lock(mu_);
  return closed_;
}

void OpenCalls::AddBatch() {
  MutexLock lock(mu_);
  ++batches_;
}

void OpenCalls::RemoveBatch() {
  MutexLock lock(mu_);
  --batches_;
  ended_.NotifyAll();  // under the lock: the waiter may destroy us as soon as it is free
}

void OpenCalls::WaitForAll() {
  MutexLock lock(mu_);
  while (batches_ > 0 || !streams_.empty() || going_ > 0) ended_.Wait(mu_);
}

}  // namespace kvstow
