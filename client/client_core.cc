#include "client/client_core.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/raw_stream.h"
#include "client/unary_call.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr Duration kFirstWait = std::chrono::milliseconds(50);
constexpr Duration kLongestWait = std::chrono::milliseconds(1000);

Duration LongerByUpToHalf(Duration wait) {
  thread_local std::minstd_rand random(std::random_device{}());
  return wait + Duration(std::uniform_int_distribution<Duration::rep>(0, wait.count() / 2)(random));
}

constexpr Duration kAskTime = std::chrono::seconds(1);

absl::StatusOr<int> AskForDirectPort(ClientCore& core) {
  KVSTOW_ASSIGN_OR_RETURN(
      const grpc::ByteBuffer answer,
      CallUnaryOnce(core, "/kvstow.v1.KvCache/OpenDirect", WriteMessage(v1::OpenDirectRequest()),
                    Clock::Real().Now() + kAskTime));
  v1::OpenDirectResponse response;
  KVSTOW_RETURN_IF_ERROR(ReadMessage(answer, response));
  return static_cast<int>(response.port());
}

}  // namespace

ClientCore::ClientCore(ClientOptions o)
    : options(std::move(o)),
      options_status(Validate(options)),
      channels(options.address),
      direct(options.address, options.direct_connections,
             [this] { return AskForDirectPort(*this); }) {
  if (options_status.ok()) options_status = executor.status();
  if (options.gpu == nullptr) return;
  gpu_thread.emplace();
  if (options.gpu_device != nullptr) gpu_coder.emplace(options.gpu_device, options.gpu);
}

bool OpenCalls::Add(RawStream* stream) {
  MutexLock lock(mu_);
  if (closed_) return false;
  streams_.insert(stream);
  return true;
}

void OpenCalls::Remove(RawStream* stream) {
  MutexLock lock(mu_);
  streams_.erase(stream);
  ++going_;
}

void OpenCalls::Gone() {
  MutexLock lock(mu_);
  --going_;
  ended_.NotifyAll();  // under the lock, as below
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
  ended_.NotifyAll();  // under the lock: the waiter may destroy us as soon as it is free
}

void OpenCalls::WaitForAll() {
  MutexLock lock(mu_);
  while (batches_ > 0 || !streams_.empty() || going_ > 0) ended_.Wait(mu_);
}

std::optional<Duration> Attempts::Next(const absl::Status& status, bool progress) {
  const absl::optional<absl::Cord> pushback = status.GetPayload(kPushbackKey);
  if (!pushback && !absl::IsUnavailable(status)) return std::nullopt;
  failed_ = progress ? 1 : failed_ + 1;
  if (failed_ >= limit_) return std::nullopt;
  Duration first = kFirstWait, longest = kLongestWait;
  if (pushback) {
    int asked_ms = -1;
    if (!absl::SimpleAtoi(std::string(*pushback), &asked_ms) || asked_ms < 0) return std::nullopt;
    first = std::chrono::milliseconds(asked_ms);
    longest = std::max(longest, first);
  }
  const Duration wait =
      LongerByUpToHalf(std::min(first * (1 << std::min(failed_ - 1, 10)), longest));
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
