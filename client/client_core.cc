#include "client/client_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/raw_stream.h"

namespace kvstow {
namespace {

constexpr Duration kFirstWait = std::chrono::milliseconds(50);
constexpr Duration kLongestWait = std::chrono::milliseconds(1000);

}  // namespace

bool OpenCalls::Add(RawStream* stream) {
  MutexLock lock(mu_);
  if (closed_) return false;
  streams_.insert(stream);
  return true;
}

void OpenCalls::Remove(RawStream* stream) {
  MutexLock lock(mu_);
  streams_.erase(stream);
}

// Under the lock, so that no stream goes while it is being cancelled; Cancel() only posts.
void OpenCalls::CancelStreams(const grpc::Channel* channel, const absl::Status& why) {
  MutexLock lock(mu_);
  for (RawStream* stream : streams_) {
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
  batch_ended_.NotifyAll();  // under the lock: the waiter may destroy us as soon as it is free
}

void OpenCalls::WaitForBatches() {
  MutexLock lock(mu_);
  while (batches_ > 0) batch_ended_.Wait(mu_);
}

std::optional<Duration> Attempts::Next(const absl::Status& status, bool progress) {
  if (!absl::IsUnavailable(status)) return std::nullopt;
  failed_ = progress ? 1 : failed_ + 1;
  if (failed_ >= limit_) return std::nullopt;
  const Duration wait = std::min(kFirstWait * (1 << std::min(failed_ - 1, 10)), kLongestWait);
  if (Clock::Real().Now() + wait >= deadline_) return std::nullopt;
  return wait;
}

absl::Status Explain(const absl::Status& status, absl::string_view address) {
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(absl::StrCat("cannot reach ", address,
                                               ": is kvstowd running? start it, or name another "
                                               "address (",
                                               status.message(), ")"));
  }
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        address, " did not answer in time: see whether it is overloaded, or allow more time"));
  }
  return status;
}

}  // namespace kvstow
