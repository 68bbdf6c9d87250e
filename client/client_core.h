// What the calls of one client share: options, connections, the thread of callbacks, and the list
// of what is open, so that the destructor can end it.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_CLIENT_CORE_H_
#define KVSTOW_CLIENT_CLIENT_CORE_H_

#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/channel.h"
#include "client/client.h"
#include "client/direct_pool.h"
#include "client/executor.h"
#include "client/gpu_coder.h"
#include "client/local_memory.h"
#include "client/space_payloads.h"

namespace kvstow {

class RawStream;

// The streams that are open and the batches whose callback has not run. A batch may be over before
// its stream.
class OpenCalls {
 public:
  // False once Close() was called: the stream must not start.
  bool Add(RawStream* stream);
  // The stream is about to go, and is not cancelled any more; Gone() once nothing of it is left.
  void Remove(RawStream* stream);
  void Gone();
  // Ends every stream on `channel` (null = on any) with `why`.
  void CancelStreams(const grpc::Channel* channel, const absl::Status& why);
  // Cancels everything and refuses what comes later.
  void Close();
  bool closed() const;

  void AddBatch();
  void RemoveBatch();
  void WaitForAll();

 private:
  mutable Mutex mu_;
  CondVar ended_;
  std::unordered_set<RawStream*> streams_ KVSTOW_GUARDED_BY(mu_);
  size_t going_ KVSTOW_GUARDED_BY(mu_) = 0;  // streams between Remove and Gone
  size_t batches_ KVSTOW_GUARDED_BY(mu_) = 0;
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
};

struct ClientCore {
  explicit ClientCore(ClientOptions o);

  // Of a call that begins now.
  Time Deadline() const { return Clock::Real().Now() + options.timeout; }

  const ClientOptions options;
  absl::Status options_status;  // what every call fails with, before it begins; const from here on
  Channels channels;
  SpacePayloads payloads{options};
  std::optional<GpuCoder> gpu_coder;  // none without ClientOptions::gpu_device
  LocalMemory local{{options.shared_bytes, options.timeout, options.gpu, options.gpu_shared_bytes}};
  OpenCalls calls;
  std::optional<Executor> gpu_thread;  // copies pages on the GPU; none without a GPU
  Executor executor;                   // it joins before the others go
  DirectPool direct;                   // so does this, and it uses the executor
};

// When to try again: after UNAVAILABLE, and after whatever came with a pushback, which is a payload
// kPushbackKey of the status (a negative one, or no number, forbids it). Waits double from
// one attempt to the next, and are a random part longer than that, so that those who were refused
// together do not come back together. One for each call.
class Attempts {
 public:
  Attempts(int limit, Time deadline) : limit_(limit), deadline_(deadline) {}

  // How long to wait before the next attempt after one failed with `status`; nullopt: give up.
  // `progress`: it had done part of the work, so the count starts again.
  std::optional<Duration> Next(const absl::Status& status, bool progress);
  Time deadline() const { return deadline_; }

 private:
  const int limit_;
  const Time deadline_;
  int failed_ = 0;
};

// The results of one batch, as they come. Not thread-safe.
template <typename Result>
class Answers {
 public:
  explicit Answers(size_t pages) : results_(pages), answered_(pages) {}

  void Set(size_t page, Result result) {
    results_[page] = std::move(result);
    answered_[page] = true;
  }
  bool Has(size_t page) const { return answered_[page]; }
  std::vector<size_t> Missing() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < answered_.size(); ++i) {
      if (!answered_[i]) out.push_back(i);
    }
    return out;
  }
  // One for each page; what was not answered is as Result begins.
  std::vector<Result> Take() { return std::move(results_); }

 private:
  std::vector<Result> results_;
  std::vector<bool> answered_;
};

// What a call of another way leaves without an answer goes over a stream, which ends the call. On
// the executor. `Call` has core, pages, answers and done, Answer(page, result) and
// StartStream(pages, done).
template <typename Call>
void GoOnOverStream(const std::shared_ptr<Call>& call) {
  std::vector<size_t> missing = call->answers.Missing();
  decltype(call->pages) rest;
  for (const size_t i : missing) rest.push_back(std::move(call->pages[i]));
  call->StartStream(std::move(rest), [call, missing = std::move(missing)](auto results) {
    for (size_t i = 0; i < missing.size(); ++i) call->Answer(missing[i], std::move(results[i]));
    call->done(call->answers.Take());
    call->core.calls.RemoveBatch();
  });
}

// A message for people: what failed, and what to do when the server was not reached.
absl::Status Explain(const absl::Status& status, absl::string_view address);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CLIENT_CORE_H_
