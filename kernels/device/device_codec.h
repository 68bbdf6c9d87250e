// A codec that works within a device's memory: pages that lie there become segments that lie there,
// and back, many pages in one call. Device::NewCodec makes it; the host's is the CPU's codec and
// the reference of every other, which gives the same bytes.
//
// Layout. `raw` is a raw page as page.h lays it out. `coded` is the segments of the encoded page,
// one after another in the order of its header: all runs of the base level, then of the next level.
// A page whose refinements were dropped is the beginning of it; whole levels only.
//
// A recipe is taken as it is written: K's groups run by token where it leaves their axis open
// (key_groups.h).
//
// Thread-safe, and stateless but for the device's streams: calls from several threads overlap. A
// call returns when its pages are done. It borrows the buffers, which are the device's own, as they
// come from Allocate or Store, and distinct; it uses nothing after it has returned. The device
// outlives its codecs.
//
// Errors: INVALID_ARGUMENT names a page whose buffers or tokens do not fit, before anything is
// done. RESOURCE_EXHAUSTED when the device is short of memory and INTERNAL with the driver's text
// when it failed: what was written is then unspecified. DATA_LOSS names a page that is damaged;
// this finds no more than Codec's decoders do, so check digests first where they matter.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_CODEC_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_CODEC_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/page/encoded_page.h"

namespace kvstow {

struct EncodeJob {
  uint32_t tokens = 0;                // 1..spec.page_tokens
  const DeviceBuffer* raw = nullptr;  // PageBytes(spec, tokens) bytes
  DeviceBuffer* coded = nullptr;      // CodedBytes(tokens) bytes or more
};

struct DecodeJob {
  uint32_t tokens = 0;
  uint32_t levels = 0;  // that `coded` begins with, 1..levels()
  const DeviceBuffer* coded = nullptr;
  DeviceBuffer* raw = nullptr;  // PageBytes(spec, tokens) bytes or more
};

struct PageCoding {
  // False: the page has NaN, Inf or values beyond fp16 and is to be kept exactly. What was written
  // for it means nothing.
  bool coded = false;
  std::vector<float> gains;  // of each segment, see SegmentInfo; empty unless asked for
};

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;

  // The recipe written out: what pages say that this codec decodes.
  virtual const std::string& pipeline() const = 0;
  virtual uint32_t levels() const = 0;
  // The segments of a page: layers, level and bytes; gain and digest are 0.
  virtual std::vector<SegmentInfo> Segments(uint32_t tokens) const = 0;
  // Gains cost about a tenth of the time. One answer for each page.
  virtual absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                         bool want_gains) = 0;
  virtual absl::Status Decode(std::span<const DecodeJob> pages) = 0;

  // Of all levels, or of the first `levels`.
  size_t CodedBytes(uint32_t tokens) const { return CodedBytes(tokens, levels()); }
  size_t CodedBytes(uint32_t tokens, uint32_t levels) const;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_CODEC_H_
