// A codec that works within a device's memory. It codes pages that lie there as segments that lie
// there, and decodes them, many pages in one call. DeviceKernels::NewCodec makes it. The host's is
// the CPU's codec, and the reference: every other gives the same bytes.
//
// Layout. `raw` is a raw page as page.h lays it out. `coded` is the segments of the encoded page,
// one after another in the order of its header: all runs of the base level, then of the next level.
// A page whose refinements were dropped is the beginning of it, in whole levels.
//
// A recipe counts as it is written: where it leaves the axis of K's groups open (key_groups.h),
// they run by token.
//
// Thread-safe, and stateless except for the device's streams: calls from several threads overlap. A
// call returns when its pages are done. It borrows the buffers, which are the device's own, of
// Allocate or Store, and distinct. It uses nothing after it has returned. The device outlives its
// codecs.
//
// Errors: INVALID_ARGUMENT names a page whose buffers or tokens do not fit, before any work.
// RESOURCE_EXHAUSTED when the device is short of memory, and INTERNAL with the driver's text when
// it failed; the output is then unspecified. DATA_LOSS names a damaged page. Decoding finds no more
// damage than Codec's decoders do, so check digests first where they matter.
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
  // False: the page has NaN, Inf or values beyond fp16, and must be kept exactly. Its output means
  // nothing.
  bool coded = false;
  std::vector<float> gains;  // of each segment, see SegmentInfo; empty unless asked for
};

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;

  // Returns the recipe, written out: the pipeline of the pages that this codec decodes.
  virtual const std::string& pipeline() const = 0;
  virtual uint32_t levels() const = 0;
  // Returns the segments of a page: layers, level and bytes. Gain and digest are 0.
  virtual std::vector<SegmentInfo> Segments(uint32_t tokens) const = 0;
  // Returns one answer for each page. Gains cost about a tenth of the time.
  virtual absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                         bool want_gains) = 0;
  virtual absl::Status Decode(std::span<const DecodeJob> pages) = 0;

  // Returns the bytes of all levels, or of the first `levels`.
  size_t CodedBytes(uint32_t tokens) const { return CodedBytes(tokens, levels()); }
  size_t CodedBytes(uint32_t tokens, uint32_t levels) const;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_CODEC_H_
