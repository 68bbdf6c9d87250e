// A bidi stream of raw messages: the gRPC part of Put and Get.
//
// A handler says what to send and takes what arrives; it knows nothing of threads. The stream calls
// it from gRPC's threads, from the thread of Start() and from a thread that rings, one call at a
// time. The last call is OnEnd().
#ifndef KVSTOW_CLIENT_CONNECTION_RAW_STREAM_H_
#define KVSTOW_CLIENT_CONNECTION_RAW_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/connection/rpc_core.h"

namespace kvstow {

class RawStream;

// A bell for a handler whose Next() waits for more than messages: after Ring(), the stream asks the
// handler again. Thread-safe.
class StreamBell {
 public:
  // Does nothing when the stream is over.
  void Ring();

 private:
  friend class RawStream;
  Mutex mu_;
  RawStream* stream_ KVSTOW_GUARDED_BY(mu_) = nullptr;
};

class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  struct Outgoing {
    std::optional<grpc::ByteBuffer> message;
    bool last = false;  // nothing follows, and Next() is not called again
  };
  // Returns what to send now, if anything. The stream asks at the start, after each message sent or
  // received, and when its bell rings.
  virtual Outgoing Next() = 0;
  // Takes a message. An error ends the stream and goes to OnEnd().
  virtual absl::Status OnMessage(const grpc::ByteBuffer& message) = 0;
  // Ends the handler: both sides are done, or the stream failed. The stream then releases the
  // handler, on the executor.
  virtual void OnEnd(const absl::Status& status) = 0;
};

// Owns itself from Start() to the end of the stream.
class RawStream final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                        public OpenStream {
 public:
  // Opens `method` ("/kvstow.v1.KvCache/Put"). When the client is closed, the stream calls the
  // handler's OnEnd() at once. `core` must outlive the stream. `bell` may be null.
  static void Start(RpcCore& core, std::shared_ptr<grpc::Channel> channel,
                    const std::string& method, Time deadline,
                    std::shared_ptr<StreamHandler> handler,
                    std::shared_ptr<StreamBell> bell = nullptr);

  // The stream must be open (OpenCalls sees to that).
  void Cancel(const absl::Status& why) override;
  const grpc::Channel* channel() const override { return channel_.get(); }

 private:
  friend class StreamBell;
  RawStream(RpcCore& core, std::shared_ptr<grpc::Channel> channel, Time deadline,
            std::shared_ptr<StreamHandler> handler, std::shared_ptr<StreamBell> bell);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void WriteNext();
  void EndReading();

  RpcCore& core_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<StreamHandler> handler_;
  const std::shared_ptr<StreamBell> bell_;
  grpc::ClientContext context_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer write_;  // of the thread that set writing_
  Mutex mu_;                // also held while the handler runs: it sees one call at a time
  bool writing_ KVSTOW_GUARDED_BY(mu_) = false;
  bool wrote_last_ KVSTOW_GUARDED_BY(mu_) = false;
  absl::Status why_ KVSTOW_GUARDED_BY(mu_);  // not OK when the client ended the stream
};

// Returns the status of a call that is over, with the pushback that came with it (Attempts).
absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);
std::chrono::system_clock::time_point WallDeadline(Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_RAW_STREAM_H_
