// The destination of a raw page that goes out: memory of the process, memory that a worker shares,
// memory of a GPU. Sockets and streams take parts of the process's memory.
//
// One object for each page; not thread-safe.
#ifndef KVSTOW_SERVICE_PAGES_PAGE_SINK_H_
#define KVSTOW_SERVICE_PAGES_PAGE_SINK_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "base/shared_bytes.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/decode_page.h"

namespace kvstow {

class PageSink {
 public:
  virtual ~PageSink() = default;
  // Returns the bytes that fit.
  virtual uint64_t room() const = 0;
  // Decodes like DecodePage, into the front. Fails with UNIMPLEMENTED when it cannot decode such
  // pages. The host then decodes for Copy, as it does after any other failure of a sink that is not
  // the host's.
  virtual absl::Status Decode(const PageHeader& header,
                              std::span<const std::optional<SharedBytes>> segments,
                              PageRange wanted, const CalibrationStore& calibrations) = 0;
  // Copies raw bytes, one part after the other, into the front.
  virtual absl::Status Copy(std::span<const SharedBytes> parts) = 0;
  // Returns the memory, where the host can read and write it; else none.
  virtual std::span<uint8_t> on_host() const = 0;
};

// Memory of the host: the process's own, or shared with a worker.
class HostSink final : public PageSink {
 public:
  explicit HostSink(std::span<uint8_t> memory) : memory_(memory) {}

  uint64_t room() const override { return memory_.size(); }
  absl::Status Decode(const PageHeader& header,
                      std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                      const CalibrationStore& calibrations) override {
    const uint64_t bytes = wanted.layers.count * LayerBytes(header.Geometry(), wanted.tokens.count);
    return DecodePage(header, segments, wanted, memory_.first(bytes), calibrations);
  }
  absl::Status Copy(std::span<const SharedBytes> parts) override {
    auto to = memory_.begin();
    for (const SharedBytes& part : parts) to = std::ranges::copy(part.span(), to).out;
    return absl::OkStatus();
  }
  std::span<uint8_t> on_host() const override { return memory_; }

 private:
  const std::span<uint8_t> memory_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_PAGE_SINK_H_
