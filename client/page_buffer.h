// Memory for pages that a client fetches and puts: shared with the server where the two are on one
// host and the server offers it (kvstowd --local-socket), else the process's own. The caller sees
// no difference but the speed: pages whose buffers are shared are decoded straight into them, and
// encoded straight out of them, and do not travel.
//
// Use one large buffer and keep it: making one asks the server. Pages in it should begin at
// multiples of 4 KiB, and end there or with the buffer; others travel as they would without it.
// Goes back to the server when it goes; nothing may be open on it then. It may outlive its client.
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
  // Of the process's own memory.
  explicit PageBuffer(size_t bytes);
  // A slot of `session`, which goes back to it.
  PageBuffer(std::shared_ptr<LocalSession> session, std::span<uint8_t> slot);
  ~PageBuffer();
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  std::span<uint8_t> bytes() const { return bytes_; }
  // Whether a server has it too. False from the moment that its session ended.
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
