#include "client/payload/payload_choice.h"

namespace kvstow {

bool PayloadChoice::EncodedNext() {
  if (wanted_ == Payload::kRaw) return false;
  MutexLock lock(mu_);
  if (stay_raw_) return false;
  if (wanted_ == Payload::kEncoded) return true;
  if (speed_[0] == 0 || speed_[1] == 0) return speed_[0] > 0;
  const bool encoded = speed_[1] > speed_[0];
  return ++batches_ % kProbeEvery == 0 ? !encoded : encoded;
}

void PayloadChoice::StayRaw() {
  MutexLock lock(mu_);
  stay_raw_ = true;
}

void PayloadChoice::Took(bool encoded, uint64_t raw_bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (raw_bytes == 0 || seconds <= 0) return;
  const double speed = static_cast<double>(raw_bytes) / seconds;
  MutexLock lock(mu_);
  double& mean = speed_[encoded ? 1 : 0];
  mean = mean == 0 ? speed : mean + (speed - mean) / 4;
}

}  // namespace kvstow
