// Places of streams that bring a blob: a calibration, or statistics of a model.
//
// A stream holds its blob in memory, so Calibrations::kMaxSending have a place at a time. One place
// is for operators alone; all tenants together have the others. When none is left, a stream gives
// way to the next one if its client has sent nothing for kGrace, or if it has had its place for
// kTurn. A tenant's stream never makes an operator's give way.
//
// Thread-safe. No lock is held while a stream is told to give way.
#ifndef KVSTOW_SERVICE_API_SENDING_PLACES_H_
#define KVSTOW_SERVICE_API_SENDING_PLACES_H_

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/caller.h"
#include "service/spaces/calibrations.h"

namespace kvstow {

class SendingPlaces {
 public:
  static constexpr Duration kGrace = std::chrono::seconds(1);
  static constexpr Duration kTurn = std::chrono::minutes(1);

  class Stream {
   public:
    virtual ~Stream() = default;
    // Ends the stream, and gives up its place and its blob. False: it has ended, or its blob is
    // whole.
    virtual bool GiveWay() = 0;
  };

  // Both outlive it.
  SendingPlaces(Calibrations& calibrations, const Clock& clock)
      : calibrations_(calibrations), clock_(clock) {}

  // A place, for as long as this lives.
  class Place {
   public:
    Place() = default;
    // Says that the client sent something.
    void Moved();

   private:
    friend class SendingPlaces;
    struct Entry;
    struct Leave {
      void operator()(Entry* entry) const;
    };
    explicit Place(Entry* entry) : entry_(entry) {}
    std::unique_ptr<Entry, Leave> entry_;
  };
  // Returns nothing when there is no place and nobody gives way.
  std::optional<Place> Take(const Caller& caller, const std::weak_ptr<Stream>& stream);

  Calibrations& calibrations() { return calibrations_; }

 private:
  using Entry = Place::Entry;

  std::optional<Place> TakeFree(bool of_tenant, const std::weak_ptr<Stream>& stream);
  // Returns those that may be told to give way to a tenant, or to an operator. Null: it is going.
  std::vector<std::shared_ptr<Stream>> WhoseTurnIsOver(bool to_tenant);

  Calibrations& calibrations_;
  const Clock& clock_;
  Mutex mu_;                                          // taken before the lock of calibrations_
  std::list<Entry*> streams_ KVSTOW_GUARDED_BY(mu_);  // in the order of their begin
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_SENDING_PLACES_H_
