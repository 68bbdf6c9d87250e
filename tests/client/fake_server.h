// A small server of kvstow.v1 from the generated code, for tests of the client: pages in a map, one
// process, faults on demand. It checks what the client promises on the wire (order of chunks,
// digests, credit) and ends a stream that breaks it.
#ifndef KVSTOW_TESTS_CLIENT_FAKE_SERVER_H_
#define KVSTOW_TESTS_CLIENT_FAKE_SERVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/client/prompt.h"

namespace kvstow {

struct FakeFaults {
  std::atomic<int> break_after_pages = -1;   // a stream ends UNAVAILABLE after so many; then off
  std::atomic<bool> stall = false;           // streams are taken and never answered
  std::atomic<bool> lie_about_kept = false;  // pages that are read speak of tokens they have not
  std::atomic<bool> flip_a_bit = false;      // in the first chunk of each page that is read
  std::atomic<bool> bad_memory = false;      // so does this, where the client said that it checks
  std::atomic<bool> shift_chunks = false;    // sends every chunk with a wrong offset
  std::atomic<int> break_after_gets = -1;    // the same before so many pages that are read
  std::atomic<int> hold_from_layer = -1;     // layers from this one on are never answered
  std::atomic<int> worse_from_layer = -1;    // they come with a level less
  std::atomic<int> other_from_layer = -1;    // they are another page's
  std::atomic<int> refusals = 0;             // so many streams are RESOURCE_EXHAUSTED
  std::atomic<int> pushback_ms = 0;          // is what those are told to wait
  std::atomic<int> streams = 0;              // opened so far
  std::atomic<int> direct_port = 0;          // where pages go beside gRPC; 0 = nowhere
  // Lookup knows no space from when so much of its time is left; < 0: it does.
  std::atomic<int> other_space_at_ms = -1;
  std::atomic<int> open_had_ms = 0;  // the time that was left to the last OpenSpace
};

class FakeServer : public ServerUnderTest {
 public:
  virtual FakeFaults& faults() = 0;
};

// `address`: "127.0.0.1:0" or "unix:PATH".
std::unique_ptr<FakeServer> StartFakeServer(const std::string& address);

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CLIENT_FAKE_SERVER_H_
