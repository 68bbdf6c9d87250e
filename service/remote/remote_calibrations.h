// RemoteCalibrations: servers give each other the calibrations that their spaces name
// (docs/FORMAT.md, "Calibrations in the remote store").
//
// A thread looks at the spaces that are open here, when it is woken and every kEvery. It sends the
// calibrations that the remote store lacks, and fetches those that are not here. A call that opens
// a space fetches at once. A blob goes in parts, because it may be larger than a value may be. It
// counts when its SHA-256 is its name, and enters as one does that was sent by an operator. A
// calibration tells of the text that it was fitted on: its name depends on the tenant, so that it
// reaches no other, and it is sealed like pages.
//
// A server sends what it fitted by itself (fitted_form.h), too. The others fetch that when a page
// comes that names it (Want), and keep it as their own tables: sealed, where they have data keys.
//
// Whatever fails is tried again at the next look; until then a space stands without its calibration
// (spaces.h). Thread-safe. The destructor ends what runs.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_CALIBRATIONS_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_CALIBRATIONS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_keys.h"
#include "service/remote/remote_store.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/spaces.h"

namespace kvstow {

class RemoteCalibrations {
 public:
  static constexpr Duration kEvery = std::chrono::seconds(60);
  struct Options {
    std::string prefix;
    Duration wait;  // of one round trip
    Duration ttl;   // of values; a blob is sent again at half of it. 0 = the engine decides
    uint32_t part_bytes = 4 << 20;
  };
  // All of them outlive this.
  RemoteCalibrations(Options options, RemoteStore& remote, RemoteKeys& keys, const Spaces& spaces,
                     Calibrations& calibrations, RemoteCounters& counters);
  ~RemoteCalibrations();

  // Fetches the calibrations that a recipe names in full and that are not here. Returns how many
  // came. Blocks.
  size_t Fetch(const std::string& tenant, absl::string_view recipe);
  // Fetches soon what a page of the tenant names, unless it is here.
  void Want(const std::string& tenant, const CalibrationId& id);
  // Looks soon: a space was opened, or a tenant has a new key.
  void Wake();
  // Waits until what was opened before was looked at.
  void Flush();

 private:
  using Wanted = std::pair<std::string, CalibrationId>;  // tenant and calibration

  static constexpr size_t kMostWanted = 64;

  void Loop();
  void Look();
  std::set<Wanted> Named();
  bool stopping();
  absl::StatusOr<RemotePlace> PlaceOf(const Wanted& wanted, RemoteKeys::Use use);
  std::vector<std::string> PartNames(const RemotePlace& place, uint64_t bytes,
                                     uint32_t part_bytes) const;
  bool IsThere(const RemotePlace& place);
  absl::Status Send(const Wanted& wanted);
  absl::Status Write(std::vector<RemoteValue> values);
  absl::Status FetchOne(const Wanted& wanted);
  absl::StatusOr<std::string> Read(const RemotePlace& place);

  const Options options_;
  RemoteStore& remote_;
  RemoteKeys& keys_;
  const Spaces& spaces_;
  Calibrations& calibrations_;
  RemoteCounters& counters_;
  Mutex mu_;
  CondVar changed_;
  uint64_t asked_ KVSTOW_GUARDED_BY(mu_) = 0;       // looks
  uint64_t begun_ KVSTOW_GUARDED_BY(mu_) = 0;       // the last of them that the running look serves
  uint64_t looked_ KVSTOW_GUARDED_BY(mu_) = 0;      // and that was served
  std::set<Wanted> wanted_ KVSTOW_GUARDED_BY(mu_);  // of pages
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::map<Wanted, Time> sent_;  // of the thread alone
  std::thread thread_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_CALIBRATIONS_H_
