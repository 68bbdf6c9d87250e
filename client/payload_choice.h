// How the pages of a space cross the network: raw, coded and decoded by the server, or encoded,
// coded and decoded by us. Encoding pays where the link is slower than the codec.
//
// kAuto measures instead of computing a break-even: batch by batch it notes how many raw bytes a
// second each way brought, from the call to its last byte, so link, codec and what else the two
// machines do are all in it. Ways that were not tried come first, then the faster one, and now and
// then the other again, since links and loads change. Put and Get are chosen apart.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_PAYLOAD_CHOICE_H_
#define KVSTOW_CLIENT_PAYLOAD_CHOICE_H_

#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"
#include "client/client.h"

namespace kvstow {

class PayloadChoice {
 public:
  explicit PayloadChoice(Payload wanted) : wanted_(wanted) {}

  // Whether the next batch goes encoded.
  bool EncodedNext();
  // What came of a batch.
  void Took(bool encoded, uint64_t raw_bytes, Duration time);

 private:
  // One batch in so many tries the slower way.
  static constexpr uint64_t kProbeEvery = 32;

  const Payload wanted_;
  Mutex mu_;
  uint64_t batches_ KVSTOW_GUARDED_BY(mu_) = 0;
  double speed_[2] KVSTOW_GUARDED_BY(mu_) = {};  // raw, encoded: bytes a second; 0 = not tried
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_CHOICE_H_
