// A server that makes the replies of a real one, and may lie before it sends them: over streams,
// direct connections and shared memory.
//
// Thread-safe. Clients must be gone before it is.
#ifndef KVSTOW_TESTS_ADVERSARY_LYING_SERVER_H_
#define KVSTOW_TESTS_ADVERSARY_LYING_SERVER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kvstow/v1/kv_cache.pb.h"
#include "tests/client/prompt.h"

namespace kvstow {

enum class LyingWay { kStream, kDirect, kShared };

// A reply and all of its payload.
struct Told {
  v1::PageReply reply;
  std::string payload;
};
// Changes what is told of a page; `other` would be told of another page, asked for the same way.
using Lie = std::function<void(Told& told, const Told& other)>;

class LyingServer {
 public:
  LyingServer();
  ~LyingServer();

  const std::string& address() const { return address_; }
  // Two pages, into the spaces `raw`, `int8` and `sparse`, which drops tokens.
  void Put(const Prompt& prompt);

  // From here on, so many replies are lies. 0: it is honest.
  void TellLies(Lie lie, const std::map<LyingWay, int>& how_many);
  // Since then.
  int lies_told(LyingWay transport) const;
  int replies(LyingWay transport) const;

 private:
  class Cache;
  class Direct;
  class Shared;
  struct Parts;

  Told Tell(LyingWay transport, const std::string& space, v1::Payload payload,
            const v1::GetPage& asked);

  struct Count {
    int left = 0, told = 0, replies = 0;
  };
  mutable std::mutex mu_;
  Lie lie_;  // these two are guarded by mu_
  std::array<Count, 3> counts_;
  std::map<std::string, std::string> others_;  // of each key; set once
  std::string address_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_ADVERSARY_LYING_SERVER_H_
