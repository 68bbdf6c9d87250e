#include "service/remote/send_budget.h"

namespace kvstow {
namespace {

constexpr int kSteps = 32;

}  // namespace

SendBudget::SendBudget(Duration window) : window_(window), step_(window / kSteps) {}

bool SendBudget::Take(const std::string& tenant, uint64_t bytes, uint64_t limit, Time now) {
  MutexLock lock(mu_);
  Sent& sent = sent_[tenant];
  // The last bytes of a step may be a step younger than its first.
  while (!sent.steps.empty() && sent.steps.front().begin + step_ + window_ <= now) {
    sent.bytes -= sent.steps.front().bytes;
    sent.steps.pop_front();
  }
  if (limit > 0 && sent.bytes + bytes > limit) return false;
  if (sent.steps.empty() || sent.steps.back().begin + step_ <= now) sent.steps.push_back({now, 0});
  sent.steps.back().bytes += bytes;
  sent.bytes += bytes;
  return true;
}

}  // namespace kvstow
