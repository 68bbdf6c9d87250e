// Codes whole pages on a device, where the raw page lies. The pages are those that Codec::Encode
// makes and DecodePage reads (decode_page.h).
//
// UNIMPLEMENTED: this page is not for the device. It must be kept exactly, only a part of it is
// wanted, or another codec made it. After any failure of a device, the CPU can code the page. Free
// functions; thread-safe. They borrow buffers, which are the device's own.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_PAGES_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_PAGES_H_

#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "kernels/device/device_codec.h"

namespace kvstow {

// A device, and a codec of it.
struct CodecOnDevice {
  Device& device;
  DeviceCodec& codec;
};

// Encodes the page in `raw` as `codec`, of the same recipe and spec, would. `page` has its digest
// and a copy on the host, of which this reads a few tokens: some recipes are chosen page by page
// (key_groups.h).
absl::StatusOr<EncodedPage> EncodeOnDevice(const CodecOnDevice& on, const Codec& codec,
                                           const PageToEncode& page, const DeviceBuffer& raw);

// Decodes like DecodePage, into the front of `raw`: all layers and tokens, of one or more whole
// levels.
absl::Status DecodeOnDevice(const CodecOnDevice& on, const PageHeader& header,
                            std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                            DeviceBuffer& raw);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_PAGES_H_
