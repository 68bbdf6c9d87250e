// Chooses how the pages of a space cross the network: raw, and the server codes and decodes them,
// or encoded, and the client does. Encoding pays where the link is slower than the codec.
//
// kAuto measures instead of computing a break-even. For each batch it notes how many raw bytes a
// second the way brought, from the call to its last byte. So the figure includes the link, the
// codec and the other work of the two machines. Untried ways come first, then the faster one, and
// now and then the other again, since links and loads change. Put and Get choose separately.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_PAYLOAD_PAYLOAD_CHOICE_H_
#define KVSTOW_CLIENT_PAYLOAD_PAYLOAD_CHOICE_H_

#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"
#include "client/spaces.h"

namespace kvstow {

class PayloadChoice {
 public:
  explicit PayloadChoice(Payload wanted) : wanted_(wanted) {}

  // Returns whether the next batch goes encoded.
  bool EncodedNext();
  // Nothing goes encoded from now on: pages came that cannot be decoded here.
  void StayRaw();
  // Takes the measurement of a batch.
  void Took(bool encoded, uint64_t raw_bytes, Duration time);

 private:
  // One batch in this many tries the slower way.
  static constexpr uint64_t kProbeEvery = 32;

  const Payload wanted_;
  Mutex mu_;
  bool stay_raw_ KVSTOW_GUARDED_BY(mu_) = false;
  uint64_t batches_ KVSTOW_GUARDED_BY(mu_) = 0;
  double speed_[2] KVSTOW_GUARDED_BY(mu_) = {};  // raw, encoded: bytes a second; 0 = not tried
};

// One attempt to move pages of a space, which the choice measures.
struct Trip {
  PayloadChoice& choice;
  const bool encoded;
  uint64_t raw_bytes = 0;  // that came or were stored
  const Time start = Clock::Real().Now();

  void End() { choice.Took(encoded, raw_bytes, Clock::Real().Now() - start); }
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_PAYLOAD_CHOICE_H_
