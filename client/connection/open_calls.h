// A client's open streams and batches, so that its destructor can end them.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_OPEN_CALLS_H_
#define KVSTOW_CLIENT_CONNECTION_OPEN_CALLS_H_

#include <cstddef>
#include <unordered_set>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace grpc {
class Channel;
}

namespace kvstow {

// A stream that somebody else may have to end.
class OpenStream {
 public:
  // Ends the stream soon, with `why`. Does not wait.
  virtual void Cancel(const absl::Status& why) = 0;
  virtual const grpc::Channel* channel() const = 0;

 protected:
  ~OpenStream() = default;
};

// The open streams, and the batches whose callback has not run. A batch may end before its stream.
class OpenCalls {
 public:
  // Returns false after Close(): the stream must not start.
  bool Add(OpenStream* stream);
  // Takes out a stream that is about to end, so that nobody cancels it any more. The caller calls
  // Gone() once nothing of it is left.
  void Remove(OpenStream* stream);
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
  std::unordered_set<OpenStream*> streams_ KVSTOW_GUARDED_BY(mu_);
  size_t going_ KVSTOW_GUARDED_BY(mu_) = 0;  // streams between Remove and Gone
  size_t batches_ KVSTOW_GUARDED_BY(mu_) = 0;
  bool closed_ KVSTOW_GUARDED_BY(mu_) = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_OPEN_CALLS_H_
