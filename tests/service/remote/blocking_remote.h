// Calls of a RemoteStore that wait for their answer, for tests.
#ifndef KVSTOW_TESTS_SERVICE_REMOTE_BLOCKING_REMOTE_H_
#define KVSTOW_TESTS_SERVICE_REMOTE_BLOCKING_REMOTE_H_

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "service/remote/remote_store.h"

namespace kvstow {

class BlockingRemote {
 public:
  explicit BlockingRemote(RemoteStore& store, Duration patience = std::chrono::seconds(10))
      : store_(store), patience_(patience) {}

  std::vector<absl::StatusOr<SharedBytes>> Get(std::vector<std::string> names) {
    std::promise<std::vector<absl::StatusOr<SharedBytes>>> promise;
    store_.Get(std::move(names), Deadline(), [&](auto r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }
  std::vector<absl::Status> Put(std::vector<RemoteValue> values, Duration ttl = Duration(0)) {
    return Wait([&](RemoteStore::Done done) {
      store_.Put(std::move(values), ttl, Deadline(), std::move(done));
    });
  }
  std::vector<absl::Status> Exists(std::vector<std::string> names) {
    return Wait([&](RemoteStore::Done done) {
      store_.Exists(std::move(names), Deadline(), std::move(done));
    });
  }
  std::vector<absl::Status> Erase(std::vector<std::string> names) {
    return Wait([&](RemoteStore::Done done) {
      store_.Erase(std::move(names), Deadline(), std::move(done));
    });
  }

  // The same for one value, of one part.
  absl::Status PutText(const std::string& name, std::string text, Duration ttl = Duration(0)) {
    return Put({{name, {SharedBytes::Take(std::move(text))}}}, ttl)[0];
  }
  absl::StatusOr<std::string> GetText(const std::string& name) {
    auto value = std::move(Get({name})[0]);
    if (!value.ok()) return value.status();
    return std::string(reinterpret_cast<const char*>(value->data()), value->size());
  }

 private:
  Time Deadline() const { return Clock::Real().Now() + patience_; }
  template <typename Start>
  std::vector<absl::Status> Wait(Start start) {
    std::promise<std::vector<absl::Status>> promise;
    start([&](std::vector<absl::Status> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }

  RemoteStore& store_;
  const Duration patience_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_SERVICE_REMOTE_BLOCKING_REMOTE_H_
