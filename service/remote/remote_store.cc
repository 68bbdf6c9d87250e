#include "service/remote/remote_store.h"

#include <utility>

namespace kvstow {
namespace {

class NoStore final : public RemoteStore {
 public:
  std::string name() const override { return "none"; }
  bool holds_values() const override { return false; }
  void Get(std::vector<std::string> names, Time, GetDone done) override {
    done(std::vector<absl::StatusOr<SharedBytes>>(names.size(), Nothing()));
  }
  void Put(std::vector<RemoteValue> values, Duration, Time, Done done) override {
    done(std::vector<absl::Status>(
        values.size(), absl::ResourceExhaustedError("there is no remote store: nothing is kept")));
  }
  void Exists(std::vector<std::string> names, Time, Done done) override {
    done(std::vector<absl::Status>(names.size(), Nothing()));
  }
  void Erase(std::vector<std::string> names, Time, Done done) override {
    done(std::vector<absl::Status>(names.size()));
  }
  Counters counters() const override { return {}; }

 private:
  static absl::Status Nothing() { return absl::NotFoundError("there is no remote store"); }
};

}  // namespace

RemoteStore& NoRemoteStore() {
  static NoStore* const store = new NoStore;
  return *store;
}

}  // namespace kvstow
