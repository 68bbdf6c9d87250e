#include "service/ops/call_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "service/spaces/space.h"

namespace kvstow {
namespace {

bool Faster(const CallRow& a, const CallRow& b) { return a.slowest < b.slowest; }
bool Earlier(const CallRow& a, const CallRow& b) { return a.last < b.last; }

// What no space can be called may be megabytes of anything, and of anybody's choice.
absl::string_view NameOrNone(absl::string_view space) {
  return CheckSpaceName(space).ok() ? space : absl::string_view();
}

void Write(const CallRow& call, const CallIds& ids, uint64_t left_out) {
  using Json = nlohmann::ordered_json;
  Json line;
  line["call"] = call.method;
  if (!call.space.empty()) line["space"] = call.space;
  line["code"] = call.code;
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(call.slowest).count();
  line["ms"] = static_cast<double>(micros) / 1e3;
  if (!ids.request.empty()) line["request"] = ids.request;
  if (!ids.trace.empty()) line["trace"] = ids.trace;
  if (!ids.span.empty()) line["span"] = ids.span;
  if (left_out > 0) line["left_out"] = left_out;
  CallsLog().warn("{}", line.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
}

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
                   Duration took, Time now, absl::FunctionRef<CallIds()> ids) {
  const bool ok = code == "OK", logged = !ok || took >= log_from_.load();
  const bool slow = took > slow_above_.load();
  if (!logged && !slow) return;
  if (!ok) ++failed_;
  const CallRow call{.method = std::string(method),
                     .space = std::string(NameOrNone(space)),
                     .code = std::string(code),
                     .calls = 1,
                     .slowest = took,
                     .last = now};
  if (uint64_t left_out = 0; logged && MayWrite(now, left_out)) Write(call, ids(), left_out);
  MutexLock lock(mu_);
  if (!ok) {
    Add(call, kFailingRows, Earlier, failing_);
  } else if (slow) {
    Add(call, kSlowRows, Faster, slow_);
    SetThreshold();
  }
}

bool CallLog::MayWrite(Time now, uint64_t& left_out) {
  MutexLock lock(mu_);
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    lines_ = 0;
  }
  if (lines_ == kLines) {
    ++left_out_;
    return false;
  }
  ++lines_;
  left_out = std::exchange(left_out_, 0);
  return true;
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
