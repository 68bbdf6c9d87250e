// Whole pages coded by a device: what Codec::Encode makes and DecodePage reads (decode_page.h),
// with the work done where the raw page lies.
//
// UNIMPLEMENTED says that this page is not for the device: it must be kept exactly, only a part of
// it is wanted, or what is stored was not made by this codec. Whatever a device fails with, the CPU
// can be asked. Free functions; thread-safe. The buffers are borrowed, and the device's own.
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

// The page in `raw`, as `codec` of the same recipe and spec would encode it. `page` has its digest,
// and a copy of it on the host, of which a few tokens are read: some recipes are chosen page by
// page (key_groups.h).
absl::StatusOr<EncodedPage> EncodeOnDevice(const CodecOnDevice& on, const Codec& codec,
                                           const PageToEncode& page, const DeviceBuffer& raw);

// As DecodePage, into the front of `raw`: all layers and tokens, of one or more whole levels.
absl::Status DecodeOnDevice(const CodecOnDevice& on, const PageHeader& header,
                            std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                            DeviceBuffer& raw);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_PAGES_H_
