// The cold form that the server fitted to a space of recipe `auto` (service/fitting), and what
// became of its fits.
//
// Thread-safe. Copies of the space share it.
#ifndef KVSTOW_SERVICE_SPACES_FITTED_FORM_H_
#define KVSTOW_SERVICE_SPACES_FITTED_FORM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "kernels/codec/codec.h"

namespace kvstow {

class FittedForm {
 public:
  // Figures are those of the pages that the form was not fitted on.
  struct State {
    std::string recipe;     // of `codec`; "" = the space's own cold form
    double ratio = 0;       // raw bytes over stored ones; 0 = not measured
    double divergence = 0;  // as predicted (kernels/methods/divergence_meter.h)
    uint64_t tokens = 0;    // that the form was fitted on
    uint64_t fits = 0;      // that ended well, since the space was opened
    std::string note;       // of the last look: what it found, or why there is no other form
  };

  explicit FittedForm(double target) : target_(target) {}

  double target() const { return target_; }  // nats
  // Returns the codec of cold pages; null: the space's own.
  std::shared_ptr<const Codec> codec() const {
    MutexLock lock(mu_);
    return codec_;
  }
  State state() const {
    MutexLock lock(mu_);
    return state_;
  }
  void Set(std::shared_ptr<const Codec> codec, State state) {
    MutexLock lock(mu_);
    codec_ = std::move(codec);
    state_ = std::move(state);
  }
  void SetNote(std::string note) {
    MutexLock lock(mu_);
    state_.note = std::move(note);
  }

 private:
  const double target_;
  mutable Mutex mu_;
  std::shared_ptr<const Codec> codec_ KVSTOW_GUARDED_BY(mu_);
  State state_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_FITTED_FORM_H_
