#include "service/operators/activity.h"

#include <algorithm>

namespace kvstow {
namespace {

uint64_t Millis(Duration d) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(d).count()));
}

void ToProto(const History::Interval& interval, Time now, v1::WorkInterval& out) {
  out.set_ended_ago_ms(Millis(now - interval.end));
  out.set_length_ms(Millis(interval.end - interval.begin));
  out.set_lookup_keys(interval.work.lookup_keys);
  out.set_lookup_hit_keys(interval.work.lookup_hit_keys);
  out.set_put_raw_bytes(interval.work.put_raw_bytes);
  out.set_put_stored_bytes(interval.work.put_stored_bytes);
  out.set_get_payload_bytes(interval.work.get_payload_bytes);
  out.set_failed_calls(interval.work.failed_calls);
}

void ToProto(const CallRow& row, Time now, v1::CallUsage& out) {
  out.set_method(row.method);
  out.set_space(row.space);
  out.set_code(row.code);
  out.set_calls(row.calls);
  out.set_slowest_ms(std::chrono::duration<double, std::milli>(row.slowest).count());
  out.set_ended_ago_ms(Millis(now - row.last));
}

}  // namespace

void TellActivity(const Metrics& metrics, const MetricsSnapshot& snapshot, Time now,
                  v1::ActivityResponse& out) {
  for (const auto& interval : metrics.history().Intervals()) {
    ToProto(interval, now, *out.add_intervals());
  }
  for (const CallRow& row : metrics.calls().Slow()) ToProto(row, now, *out.add_slow());
  for (const CallRow& row : metrics.calls().Failing()) ToProto(row, now, *out.add_failing());
  v1::Load& load = *out.mutable_load();
  load.set_put_streams(metrics.open_streams(StreamKind::kPut));
  load.set_get_streams(metrics.open_streams(StreamKind::kGet));
  load.set_direct_connections(snapshot.direct_connections);
  load.set_local_sessions(snapshot.local_sessions);
  load.set_put_queue_pages(snapshot.put_queue);
  load.set_get_queue_pages(snapshot.get_queue);
  load.set_waiting_gets(snapshot.waiting_gets);
  load.set_put_bytes(snapshot.put_bytes);
  load.set_get_bytes(snapshot.get_bytes);
  load.set_leased_pages(snapshot.usage.leased_pages);
  load.set_index_bytes(snapshot.usage.index_bytes);
}

}  // namespace kvstow
