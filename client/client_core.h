// The parts that the calls of one client share: options, connections, the thread of callbacks, and
// the list of open calls, so that the destructor can end them.
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

// The open streams, and the batches whose callback has not run. A batch may end before its stream.
class OpenCalls {
 public:
  // Returns false after Close(): the stream must not start.
  bool Add(RawStream* stream);
  // Takes out a stream that is about to end, so that nobody cancels it any more. The caller calls
  // Gone() once nothing of it is left.
  void Remove(RawStream* stream);
  void Gone();
  // Ends every stream on `channel` (null = on any) with `why`.
  void CancelStreams(const grpc::Channel* channel, const absl::Status& why);
  // Cancels everything and refuses later streams.
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

  // Returns the deadline of a call that begins now.
  Time Deadline() const { return Clock::Real().Now() + options.timeout; }

  const ClientOptions options;
  absl::Status options_status;  // unless OK, every call fails with it; const after construction
  Channels channels;
  SpacePayloads payloads{options};
  std::optional<GpuCoder> gpu_coder;  // none without ClientOptions::gpu_device
  LocalMemory local{{options.shared_bytes, options.timeout, options.gpu, options.gpu_shared_bytes}};
  OpenCalls calls;
  std::optional<Executor> gpu_thread;  // copies pages on the GPU; none without a GPU
  Executor executor;                   // joins before the members above go
  DirectPool direct;                   // joins before all of them; it uses the executor
};

// Decides when to try a call again: after UNAVAILABLE, and after any status with a pushback, which
// is a payload kPushbackKey (a negative one, or one that is no number, forbids it). Waits double
// from one attempt to the next. Each is longer by a random part, so that clients that were refused
// together do not come back together. One object for each call.
class Attempts {
 public:
  Attempts(int limit, Time deadline) : limit_(limit), deadline_(deadline) {}

  // Returns the time to wait before the next attempt, after one failed with `status`; nullopt: give
  // up. With `progress` the attempt did part of the work, and the count starts again.
  std::optional<Duration> Next(const absl::Status& status, bool progress);
  Time deadline() const { return deadline_; }

 private:
  const int limit_;
  const Time deadline_;
  int failed_ = 0;
};

// Collects the results of one batch as they come. Not thread-safe.
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
  // Returns one result for each page; an unanswered page has a default Result.
  std::vector<Result> Take() { return std::move(results_); }

 private:
  std::vector<Result> results_;
  std::vector<bool> answered_;
};

// Sends the pages that a call left without an answer on another way over a stream, and then ends
// the call. Runs on the executor. `Call` has core, pages, answers and done, Answer(page, result)
// and StartStream(pages, done).
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

// Returns a status with a message for people: what failed, and what to do when the server was not
// reached.
absl::Status Explain(const absl::Status& status, absl::string_view address);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CLIENT_CORE_H_
