#include "client/python/native/references.h"

#include <mutex>

namespace kvstow::python {
namespace {

struct HandedOver {
  std::mutex mutex;
  std::vector<nanobind::object> objects;
  std::vector<nanobind::ndarray<nanobind::ro>> arrays;
};
// Never destroyed: threads of the client may outlive the interpreter.
HandedOver& Handed() {
  static HandedOver& handed = *new HandedOver;
  return handed;
}

}  // namespace

References::~References() {
  if (objects_.empty() && arrays_.empty()) return;
  if (Py_IsInitialized() && PyGILState_Check()) return;  // the members' destructors let go
  HandedOver& handed = Handed();
  {
    const std::lock_guard lock(handed.mutex);
    for (auto& object : objects_) handed.objects.push_back(std::move(object));
    for (auto& array : arrays_) handed.arrays.push_back(std::move(array));
  }
  objects_.clear();
  arrays_.clear();
  if (!Py_IsInitialized()) return;
  // A full queue of pending calls is no harm: the next call of this package lets go too.
  Py_AddPendingCall(
      [](void*) {
        LetGoOfHandedOver();
        return 0;
      },
      nullptr);
}

void References::LetGoOfHandedOver() {
  std::vector<nanobind::object> objects;
  std::vector<nanobind::ndarray<nanobind::ro>> arrays;
  const std::lock_guard lock(Handed().mutex);
  objects.swap(Handed().objects);
  arrays.swap(Handed().arrays);
}

}  // namespace kvstow::python
