// The Python objects that a call keeps alive while it is open: the buffers that it reads and
// writes.
//
// The client's threads end calls, and they do not hold Python's interpreter lock (GIL). Nothing may
// let go of a Python object without it. So an owner without the lock hands its objects over, and
// the next thread that holds the lock lets go of them: the main thread soon (Py_AddPendingCall),
// or the next call.
//
// Not thread-safe; the destructor runs on any thread.
#ifndef KVSTOW_CLIENT_PYTHON_NATIVE_REFERENCES_H_
#define KVSTOW_CLIENT_PYTHON_NATIVE_REFERENCES_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

namespace kvstow::python {

class References {
 public:
  References() = default;
  References(References&&) = default;
  References& operator=(References&&) = delete;
  ~References();

  void Keep(nanobind::object object) { objects_.push_back(std::move(object)); }
  void Keep(nanobind::ndarray<nanobind::ro> array) { arrays_.push_back(std::move(array)); }

  // Lets go of what others handed over. The caller holds the GIL.
  static void LetGoOfHandedOver();

 private:
  std::vector<nanobind::object> objects_;
  std::vector<nanobind::ndarray<nanobind::ro>> arrays_;
};

}  // namespace kvstow::python

#endif  // KVSTOW_CLIENT_PYTHON_NATIVE_REFERENCES_H_
