// Publishes the comings and goings of pages as KV events, for routers: ZeroMQ, in vLLM's schema.
//
// A PUB socket sends batches to whoever subscribed: three frames, topic `kv@NAME@MODEL`, the
// batch's number (8 bytes, big endian) and the batch. A ROUTER socket answers replays: a request is
// an empty frame and the first wanted number; the answer is one message for each batch (an empty
// frame and the three above), then one with the number -1 and an empty payload (docs/FORMAT.md).
//
// One thread owns the sockets. It never holds up the store: it takes changes from an EventQueue. It
// never waits for a subscriber: what a slow one does not take is dropped, which it sees by the
// numbers.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_EVENTS_EVENT_PUBLISHER_H_
#define KVSTOW_SERVICE_EVENTS_EVENT_PUBLISHER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "service/events/event_log.h"
#include "service/events/event_queue.h"

namespace kvstow {

class EventPublisher {
 public:
  struct Options {
    std::string listen;         // HOST:PORT; "" = none. Port 0 picks one
    std::string connect;        // HOST:PORT of a router that listens; "" = none
    std::string replay_listen;  // HOST:PORT; "" = no replays
    EventLog::Options log;
  };
  struct Counters {
    EventLog::Counters log;
    uint64_t replays = 0;
  };

  // Starts the thread. `tell_pages` makes the store tell `queue` all its pages. Both outlive the
  // publisher. Errors name the setting.
  static absl::StatusOr<std::unique_ptr<EventPublisher>> Start(Options options, EventQueue& queue,
                                                               EventLog::FindLabel find_label,
                                                               std::function<void()> tell_pages);
  // Publishes what is in the queue, and stops.
  ~EventPublisher();

  // Return what is bound, as HOST:PORT; "" = nothing.
  const std::string& address() const;
  const std::string& replay_address() const;
  Counters counters() const;

 private:
  class Impl;
  explicit EventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_EVENTS_EVENT_PUBLISHER_H_
