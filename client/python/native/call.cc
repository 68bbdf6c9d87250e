#include "client/python/native/call.h"

#include <atomic>
#include <utility>

namespace kvstow::python {
namespace {

uint64_t NextNumber() {
  static std::atomic<uint64_t> next = 0;
  return ++next;
}

}  // namespace

Call::Call(std::shared_ptr<Completions> completions, References references)
    : number_(NextNumber()), completions_(std::move(completions)) {
  references_.emplace(std::move(references));
}

void Call::AddRun(LayerRange layers, std::span<const GetResult> so_far) {
  {
    const std::lock_guard lock(mutex_);
    runs_.push_back({layers, {so_far.begin(), so_far.end()}});
    changed_.notify_all();
  }
  if (completions_ != nullptr) completions_->Push(number_);
}

void Call::Finish(std::vector<PutResult> results) { End(std::move(results)); }
void Call::Finish(std::vector<GetResult> results) { End(std::move(results)); }

void Call::End(std::variant<std::vector<PutResult>, std::vector<GetResult>> results) {
  {
    const std::lock_guard lock(mutex_);
    results_ = std::move(results);
    done_ = true;
    references_.reset();
    changed_.notify_all();
  }
  if (completions_ != nullptr) completions_->Push(number_);
}

bool Call::WaitFor(std::chrono::milliseconds time, bool or_run) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return done_ || (or_run && !runs_.empty()); });
}

bool Call::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

std::optional<LayerRun> Call::TakeRun() {
  const std::lock_guard lock(mutex_);
  if (runs_.empty()) return std::nullopt;
  LayerRun run = std::move(runs_.front());
  runs_.pop_front();
  return run;
}

std::vector<PutResult> Call::TakePuts() {
  const std::lock_guard lock(mutex_);
  return std::exchange(std::get<std::vector<PutResult>>(results_), {});
}

std::vector<GetResult> Call::TakeGets() {
  const std::lock_guard lock(mutex_);
  return std::exchange(std::get<std::vector<GetResult>>(results_), {});
}

}  // namespace kvstow::python
