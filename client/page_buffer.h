// Memory for pages that a client fetches and puts. It is shared with the server where the two are
// on one host and the server offers it (kvstowd --local-socket), else it is the process's own. Only
// the speed differs: the server decodes pages straight into shared buffers, and encodes them
// straight out of them, so they do not travel.
//
// Use one large buffer and keep it: making one asks the server. Pages in it should begin at
// multiples of 4 KiB, and end there or with the buffer; others travel as they would without it. The
// destructor gives the memory back to the server; no call may be open on it then. The buffer may
// outlive its client.
#ifndef KVSTOW_CLIENT_PAGE_BUFFER_H_
#define KVSTOW_CLIENT_PAGE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvstow {

class LocalSession;

class PageBuffer {
 public:
  // Takes the process's own memory.
  explicit PageBuffer(size_t bytes);
  // Takes a slot of `session`, and gives it back at the end.
  PageBuffer(std::shared_ptr<LocalSession> session, std::span<uint8_t> slot);
  ~PageBuffer();
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  std::span<uint8_t> bytes() const { return bytes_; }
  // Returns whether a server has the memory too. False from the moment that its session ended.
  bool shared() const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(uint8_t* at) const;
  };
  const std::unique_ptr<uint8_t, Unmap> own_;
  std::shared_ptr<LocalSession> session_;
  const std::span<uint8_t> bytes_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAGE_BUFFER_H_
