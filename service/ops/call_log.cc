#include "service/ops/call_log.h"

#include <algorithm>

namespace kvstow {
namespace {

bool Faster(const CallRow& a, const CallRow& b) { return a.slowest < b.slowest; }
bool Earlier(const CallRow& a, const CallRow& b) { return a.last < b.last; }

}  // namespace

void CallLog::Add(const CallRow& call, size_t most, bool (*weaker)(const CallRow&, const CallRow&),
                  Rows& rows) {
  const auto row = std::ranges::find_if(rows, [&](const CallRow& r) {
    return r.method == call.method && r.space == call.space && r.code == call.code;
  });
  if (row != rows.end()) {
    row->calls += 1;
    row->slowest = std::max(row->slowest, call.slowest);
    row->last = call.last;
  } else if (rows.size() < most) {
    rows.push_back(call);
  } else if (const auto weakest = std::ranges::min_element(rows, weaker); weaker(*weakest, call)) {
    *weakest = call;
  }
}

void CallLog::Note(absl::string_view method, absl::string_view space, absl::string_view code,
                   Duration took, Time now) {
  const bool ok = code == "OK";
  if (ok && took <= slow_above_.load()) return;
  if (!ok) ++failed_;
  const CallRow call{.method = std::string(method),
                     .space = std::string(space),
                     .code = std::string(code),
                     .calls = 1,
                     .slowest = took,
                     .last = now};
  MutexLock lock(mu_);
  if (ok) {
    Add(call, kSlowRows, Faster, slow_);
    SetThreshold();
  } else {
    Add(call, kFailingRows, Earlier, failing_);
  }
}

void CallLog::DropOld(Time now) {
  const auto old = [&](const CallRow& row) { return now - row.last > kKept; };
  MutexLock lock(mu_);
  std::erase_if(slow_, old);
  std::erase_if(failing_, old);
  SetThreshold();
}

void CallLog::SetThreshold() {
  const bool full = slow_.size() == kSlowRows;
  slow_above_ = full ? std::ranges::min_element(slow_, Faster)->slowest : kSlow;
}

std::vector<CallRow> CallLog::Slow() const {
  MutexLock lock(mu_);
  Rows out = slow_;
  std::ranges::sort(out, [](const CallRow& a, const CallRow& b) { return Faster(b, a); });
  return out;
}

std::vector<CallRow> CallLog::Failing() const {
  MutexLock lock(mu_);
  Rows out = failing_;
  std::ranges::sort(out, [](const CallRow& a, const CallRow& b) { return Earlier(b, a); });
  return out;
}

}  // namespace kvstow
