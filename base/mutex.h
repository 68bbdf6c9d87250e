// A std::mutex that clang's thread safety analysis understands (the `tidy` preset checks it).
//
// It is not absl::Mutex: the system's Abseil is not instrumented, so ThreadSanitizer would report
// races that are not there. Guard each shared field with KVSTOW_GUARDED_BY(mu_). Name the lock that
// a private function needs with KVSTOW_REQUIRES(mu_). Never hold a lock across I/O or a callback.
#ifndef KVSTOW_BASE_MUTEX_H_
#define KVSTOW_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KVSTOW_THREAD_ANNOTATION_(x) __attribute__((x))
#else
#define KVSTOW_THREAD_ANNOTATION_(x)
#endif

#define KVSTOW_GUARDED_BY(mu) KVSTOW_THREAD_ANNOTATION_(guarded_by(mu))
#define KVSTOW_REQUIRES(mu) KVSTOW_THREAD_ANNOTATION_(requires_capability(mu))
#define KVSTOW_EXCLUDES(mu) KVSTOW_THREAD_ANNOTATION_(locks_excluded(mu))

namespace kvstow {

class KVSTOW_THREAD_ANNOTATION_(capability("mutex")) Mutex {
 public:
  void Lock() KVSTOW_THREAD_ANNOTATION_(acquire_capability()) { mu_.lock(); }
  void Unlock() KVSTOW_THREAD_ANNOTATION_(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds a Mutex for a scope.
class KVSTOW_THREAD_ANNOTATION_(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) KVSTOW_THREAD_ANNOTATION_(acquire_capability(mu)) : mu_(mu) {
    mu_.Lock();
  }
  ~MutexLock() KVSTOW_THREAD_ANNOTATION_(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Wakes threads that wait for a condition that one Mutex guards. Wait in a loop on the condition.
class CondVar {
 public:
  void Wait(Mutex& mu) KVSTOW_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false when `timeout` passed first.
  bool WaitFor(Mutex& mu, std::chrono::nanoseconds timeout) KVSTOW_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool woken = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_MUTEX_H_
