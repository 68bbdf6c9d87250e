// A call of the client that Python started and has not looked at yet: its results, and the objects
// that must live until then.
//
// The client's threads finish a call, without the GIL. Python waits for it, or hears of it through
// Completions. Thread-safe.
#ifndef KVSTOW_CLIENT_PYTHON_NATIVE_CALL_H_
#define KVSTOW_CLIENT_PYTHON_NATIVE_CALL_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "client/pages.h"
#include "client/python/native/completions.h"
#include "client/python/native/references.h"

namespace kvstow::python {

// Layers of all pages that have arrived (Client::GetLayersAsync).
struct LayerRun {
  LayerRange layers;
  std::vector<GetResult> so_far;
};

class Call : public std::enable_shared_from_this<Call> {
 public:
  // `completions` may be null. It gets the call's number at every run of layers and at the end.
  Call(std::shared_ptr<Completions> completions, References references);

  uint64_t number() const { return number_; }

  // The client's threads. After Finish, the call keeps no Python object any more.
  void AddRun(LayerRange layers, std::span<const GetResult> so_far);
  void Finish(std::vector<PutResult> results);
  void Finish(std::vector<GetResult> results);

  // Waits until the call has results, or, with `or_run`, a run of layers that nobody took. Returns
  // whether it has. The caller does not hold the GIL.
  bool WaitFor(std::chrono::milliseconds time, bool or_run);
  bool done() const;
  std::optional<LayerRun> TakeRun();
  // Returns the results, once. The call is done.
  std::vector<PutResult> TakePuts();
  std::vector<GetResult> TakeGets();

 private:
  void End(std::variant<std::vector<PutResult>, std::vector<GetResult>> results);

  const uint64_t number_;
  const std::shared_ptr<Completions> completions_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<References> references_;
  std::deque<LayerRun> runs_;
  bool done_ = false;
  std::variant<std::vector<PutResult>, std::vector<GetResult>> results_;
};

}  // namespace kvstow::python

#endif  // KVSTOW_CLIENT_PYTHON_NATIVE_CALL_H_
