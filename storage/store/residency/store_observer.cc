#include "storage/store/residency/store_observer.h"

namespace kvstow {
namespace {

class NoObserver final : public StoreObserver {
  void Restart(size_t) override {}
  void PageCame(SpaceId, absl::string_view, uint32_t) override {}
  void PageWent(SpaceId, absl::string_view) override {}
};

}  // namespace

StoreObserver& NoStoreObserver() {
  static NoObserver none;
  return none;
}

}  // namespace kvstow
