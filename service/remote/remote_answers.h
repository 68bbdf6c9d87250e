// Waits for the answer of one call of a RemoteStore.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_ANSWERS_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_ANSWERS_H_

#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

// `T` is what the call gives for each name. One object for one call.
template <typename T>
class RemoteAnswers {
 public:
  auto Take() {
    return [this](std::vector<T> answers) {
      MutexLock lock(mu_);
      answers_ = std::move(answers);
      there_ = true;
      came_.NotifyAll();
    };
  }
  std::vector<T> Wait() {
    MutexLock lock(mu_);
    while (!there_) came_.Wait(mu_);
    return std::move(answers_);
  }

 private:
  Mutex mu_;
  CondVar came_;
  bool there_ KVSTOW_GUARDED_BY(mu_) = false;
  std::vector<T> answers_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_ANSWERS_H_
