// The log of KV events: what the publisher has said, and what it says to those who come late.
//
// The log turns changes of pages into numbered batches. It keeps the last batches, and the hashes
// of all pages as those who heard every batch know them. From both it answers replays:
//
//   - from a batch that is kept: that batch and all after it;
//   - from an earlier one: AllBlocksCleared and all pages, then empty batches up to the newest of
//     that moment, then what came since. A replay so has a batch for every number, and whoever
//     applies it knows what the store holds.
//
// Numbers grow by one from batch to batch. Where changes were lost, one number is left out. One
// sequence covers all topics: a subscriber sees gaps only if it subscribes to all topics of a
// server
// (`kv@NAME@`).
//
// Not thread-safe: the publisher's thread owns it.
#ifndef KVSTOW_SERVICE_EVENTS_EVENT_LOG_H_
#define KVSTOW_SERVICE_EVENTS_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "service/events/event_batch.h"
#include "service/events/event_queue.h"

namespace kvstow {

// A message of the publisher.
struct EventFrame {
  uint64_t sequence = 0;
  std::shared_ptr<const std::string> topic;
  std::shared_ptr<const std::string> payload;
};

class EventLog {
 public:
  // How routers know the pages of a space.
  struct Label {
    std::string model;
    std::string adapter;  // LoRA; "" = none
  };
  // Returns nothing for a space whose pages are not published.
  using FindLabel = std::function<std::optional<Label>(SpaceId)>;
  struct Options {
    std::string name;  // of this server in topics
    size_t max_batches = 10'000;
    size_t max_bytes = size_t{64} << 20;
    size_t hashes_of_batch = 4096;
  };
  struct Counters {
    uint64_t stored = 0, removed = 0, cleared = 0;  // blocks, blocks, events
    uint64_t batches = 0;
  };
  // A replay on its way; see Replay and Next.
  struct Cursor {
    uint64_t first = 0, next = 0;
    uint64_t pages_end = 0;  // numbers below this are of `pages`, and empty batches
    std::vector<EventFrame> pages;
  };

  EventLog(Options options, FindLabel find_label);

  // Publishes the changes, in their order. A restart other than the first means that changes were
  // lost.
  void Add(const std::vector<PageChange>& changes, double seconds,
           absl::FunctionRef<void(const EventFrame&)> publish);

  // Publishes AllBlocksCleared and all pages again, for a subscriber that just came and cannot ask.
  void Repeat(double seconds, absl::FunctionRef<void(const EventFrame&)> publish);

  // Begins a replay from the batch of that number on.
  Cursor Replay(uint64_t first, double seconds) const;
  // Returns the next message of a replay; nothing at its end, or when it fell so far behind that
  // the batches it needs are gone.
  std::optional<EventFrame> Next(Cursor& replay) const;

  uint64_t next_sequence() const { return next_sequence_; }
  size_t pages() const;
  const Counters& counters() const { return counters_; }

 private:
  struct Published {
    Label label;
    std::shared_ptr<const std::string> topic;
    absl::flat_hash_map<uint64_t, uint32_t> blocks;  // tokens by hash
  };
  class Writer;

  using Publish = absl::FunctionRef<void(const EventFrame&)>;

  Published* Find(SpaceId space);
  void Emit(EventFrame frame, Publish publish);
  std::vector<EventFrame> Pages(double seconds, size_t hashes_of_batch) const;

  const Options options_;
  const FindLabel find_label_;
  const std::shared_ptr<const std::string> own_topic_;  // of what is about no model
  std::shared_ptr<const std::string> empty_;            // a batch without events
  std::map<SpaceId, Published> spaces_;
  std::deque<EventFrame> kept_;  // their numbers have no gap
  size_t kept_bytes_ = 0;
  uint64_t next_sequence_ = 0;
  Counters counters_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_EVENTS_EVENT_LOG_H_
