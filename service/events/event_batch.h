// Batches of KV events as vLLM writes them: MessagePack of `[seconds, [event, ...], rank]`, where
// an event is a map with the key `type` (docs/FORMAT.md has the bytes).
//
//   EventBatch batch;
//   batch.AddStored(hashes, 64, "");
//   std::string payload = batch.Finish(seconds);
//
// Not thread-safe.
#ifndef KVSTOW_SERVICE_EVENTS_EVENT_BATCH_H_
#define KVSTOW_SERVICE_EVENTS_EVENT_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace kvstow {

class EventBatch {
 public:
  // Adds blocks of `block_size` tokens that can be had from now on. Neither their parents nor their
  // tokens are known. `adapter` is a LoRA's name; "" = none.
  void AddStored(std::span<const uint64_t> hashes, uint32_t block_size, absl::string_view adapter);
  void AddRemoved(std::span<const uint64_t> hashes);
  void AddCleared();
  size_t events() const { return events_; }
  size_t hashes() const { return hashes_; }

  // Returns the batch, made at `seconds` since the epoch, and starts another one.
  std::string Finish(double seconds);

 private:
  std::string body_;
  size_t events_ = 0, hashes_ = 0;
};

// The hash by which engines and routers know a block whose key has these bytes: the last 8, big
// endian. It is what vLLM publishes for a block hash.
uint64_t EventHash(absl::string_view key);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_EVENTS_EVENT_BATCH_H_
