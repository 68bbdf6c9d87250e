#include "service/ops/history.h"

namespace kvstow {
namespace {

Work Grown(const Work& now, const Work& before) {
  return {.lookup_keys = now.lookup_keys - before.lookup_keys,
          .lookup_hit_keys = now.lookup_hit_keys - before.lookup_hit_keys,
          .put_raw_bytes = now.put_raw_bytes - before.put_raw_bytes,
          .put_stored_bytes = now.put_stored_bytes - before.put_stored_bytes,
          .get_payload_bytes = now.get_payload_bytes - before.get_payload_bytes,
          .failed_calls = now.failed_calls - before.failed_calls};
}

}  // namespace

void History::Observe(Time now, const Work& total) {
  MutexLock lock(mu_);
  if (!started_) {
    started_ = true;
    before_ = total;
    now_ = {.begin = now, .end = now, .work = {}};
    return;
  }
  now_.end = now;
  now_.work = Grown(total, before_);
  if (now - now_.begin < kStep) return;
  past_.push_back(now_);
  if (past_.size() > kSteps) past_.pop_front();
  before_ = total;
  now_ = {.begin = now, .end = now, .work = {}};
}

std::vector<History::Interval> History::Intervals() const {
  MutexLock lock(mu_);
  std::vector<Interval> out(past_.begin(), past_.end());
  if (now_.end > now_.begin) out.push_back(now_);
  return out;
}

}  // namespace kvstow
