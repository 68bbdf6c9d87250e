// Tells a thread of Python, or its event loop, which calls made progress: a list of their numbers
// and a descriptor (eventfd) that is readable while the list has entries.
//
// Thread-safe. The client's threads push; they need no GIL.
#ifndef KVSTOW_CLIENT_PYTHON_NATIVE_COMPLETIONS_H_
#define KVSTOW_CLIENT_PYTHON_NATIVE_COMPLETIONS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace kvstow::python {

class Completions : public std::enable_shared_from_this<Completions> {
 public:
  // Throws std::runtime_error where the process has no descriptor left.
  Completions();
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  int descriptor() const { return descriptor_; }
  void Push(uint64_t call);
  // Returns the numbers that were pushed since the last time, in order, and makes the descriptor
  // not readable. A call that made progress twice is there twice.
  std::vector<uint64_t> Drain();

 private:
  const int descriptor_;
  std::mutex mutex_;
  std::vector<uint64_t> calls_;
};

}  // namespace kvstow::python

#endif  // KVSTOW_CLIENT_PYTHON_NATIVE_COMPLETIONS_H_
