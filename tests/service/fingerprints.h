// The fingerprints of the spaces that tests name, as they were when the spaces were opened last in
// this process.
//
// Thread-safe.
#ifndef KVSTOW_TESTS_SERVICE_FINGERPRINTS_H_
#define KVSTOW_TESTS_SERVICE_FINGERPRINTS_H_

#include <map>
#include <mutex>
#include <string>

namespace kvstow::testing {

class Fingerprints {
 public:
  static Fingerprints& All() {
    static auto& all = *new Fingerprints();
    return all;
  }
  void Note(const std::string& space, const std::string& fingerprint) {
    const std::lock_guard lock(mu_);
    by_space_[space] = fingerprint;
  }
  // 16 zeros for a space that nobody opened.
  std::string Of(const std::string& space) const {
    const std::lock_guard lock(mu_);
    const auto it = by_space_.find(space);
    return it == by_space_.end() ? std::string(16, '\0') : it->second;
  }

 private:
  mutable std::mutex mu_;
  std::map<std::string, std::string> by_space_;
};

// Has a message name a space, as it was opened last.
template <typename Message>
void NameSpace(const std::string& space, Message& message) {
  message.set_space(space);
  message.set_fingerprint(Fingerprints::All().Of(space));
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_FINGERPRINTS_H_
