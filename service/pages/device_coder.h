// DeviceCoder: codes calibrated pages on the server's GPU, from and to the host's memory.
//
//   DeviceCoder coder(gpu, calibrations, {});
//   coded = coder.Encode(pages);                       // nothing for a page: the CPU codes it
//   if (!coder.Decode(spec, header, bodies, {}, out))  // the CPU decodes it
//
// The GPU codes what DeviceJointCodec takes: whole pages of `kvstow-cal` alone, of some size, as
// the recipe is written. Everything else is the CPU's, and so is every page that the GPU refuses or
// fails on: an answer never depends on the GPU. What the two make differs within kJointDeviceError
// (device_joint_codec.h). A body that the GPU finds damaged is the CPU's too, which says so.
//
// After a failure of the GPU nothing goes there for a while (Options::rest). The log says why.
//
// A page of few streams takes a GPU as long as many pages do, and hardly uses it. So some pages are
// decoded there at once (Options::most_decodes), and the others are the CPU's: no get waits for its
// turn while the CPU could decode.
//
// A codec has its calibration's matrices in the GPU's memory, 15 to 100 MB. It is made at its first
// page, whose thread waits for it; pages of other threads are the CPU's meanwhile. It goes when its
// calibration has gone, or when another needs its room and nobody used it for a while. A call that
// runs then keeps it until its end.
//
// Owns the codecs alone: the device and the calibrations outlive it. Thread-safe. A call takes
// buffers for its pages, and gives them back before it returns. Its own lock is held while nothing
// is coded and no calibration is sent.
#ifndef KVSTOW_SERVICE_PAGES_DEVICE_CODER_H_
#define KVSTOW_SERVICE_PAGES_DEVICE_CODER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/device/device_codec.h"
#include "kernels/device/device_joint_codec.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

class DeviceCoder {
 public:
  struct Options {
    uint64_t most_codec_bytes = uint64_t{512} << 20;  // of matrices on the GPU, about
    uint64_t most_batch_bytes = uint64_t{256} << 20;  // of raw pages in one call of Encode
    uint64_t least_page_bytes = uint64_t{256} << 10;  // raw; of less, a launch costs more
    uint32_t most_decodes = 8;                        // pages at once
    // After a failure; also how long a codec is kept that nobody uses, while another needs its
    // room.
    Duration rest = std::chrono::seconds(10);
    const Clock* clock = &Clock::Real();
  };
  static constexpr size_t kMostPages = 64;  // in one call of Encode

  // Leaves every page to the CPU.
  static DeviceCoder& None();

  // `device` null = as None.
  DeviceCoder(Device* device, const CalibrationStore& calibrations, const Options& options)
      : device_(device), calibrations_(calibrations), options_(options) {}

  bool on() const { return device_ != nullptr; }
  const Options& options() const { return options_; }
  // Returns about the bytes of matrices on the GPU.
  uint64_t codec_bytes() const;
  // Returns whether the GPU codes pages of that codec at present. Makes the GPU's codec, if need
  // be.
  bool Takes(const Codec& codec) { return on() && CodecOf(codec) != nullptr; }

  // Returns whether pages of both go into one call. Takes is true for the first.
  static bool TakesTogether(const Codec& codec, const Codec& other);

  // Returns whether Encode needs no raw bytes of the page that `codec` is to code: the GPU decodes
  // what is here of it, to the very bytes that the CPU would.
  bool Recodes(const Codec& codec, const PageHeader& header);

  // Encodes as the codecs of the pages would; those of one recipe and spec go together. `page` has
  // its raw digest. Where Recodes says so, it has no raw bytes, but `header` and `bodies`. Returns
  // an answer for each page, whose policies nobody asked.
  struct PageOfCodec {
    const Codec* codec = nullptr;
    PageToEncode page;
    const PageHeader* header = nullptr;
    std::span<const SharedBytes> bodies = {};
  };
  std::vector<std::optional<EncodedPage>> Encode(std::span<const PageOfCodec> pages);

  // Decodes like DecodePage; `spec` is that of the page's space. False: the CPU must, because the
  // page is not the GPU's or the GPU is busy; the memory is undefined.
  bool Decode(const KvSpec& spec, const PageHeader& header,
              std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
              std::span<uint8_t> out);
  // The same into the front of a buffer of the device.
  bool DecodeThere(const KvSpec& spec, const PageHeader& header,
                   std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                   DeviceBuffer& raw);

 private:
  struct Made {
    std::shared_ptr<const Calibration> calibration;
    std::unique_ptr<DeviceJointCodec> codec;
  };
  using OnDevice = std::shared_ptr<const Made>;
  struct Entry {
    std::string pipeline;  // names its calibration in full
    KvSpec spec;           // without names
    CalibrationId calibration{};
    uint64_t bytes = 0;
    Time used;
    OnDevice codec;  // null: the device has none, or it is being made
  };

  struct PlainEntry {
    std::string pipeline;
    KvSpec spec;
    std::shared_ptr<DeviceCodec> codec;  // null: the device has none
  };

  OnDevice CodecOf(const Codec& codec) { return CodecOf(codec.recipe(), codec.spec()); }
  // Null: the CPU's.
  OnDevice CodecOf(const Recipe& recipe, const KvSpec& spec);
  // The codec of a recipe without a calibration; null: the CPU's.
  std::shared_ptr<DeviceCodec> PlainCodecOf(const PageHeader& header, const KvSpec& spec);
  // Brings the raw page to the device.
  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Stage(const PageOfCodec& page);
  // Takes a place for a codec that is to be made; false when there is no room for it.
  bool TakePlace(Entry entry) KVSTOW_REQUIRES(mu_);
  Entry* Find(absl::string_view pipeline, const KvSpec& spec) KVSTOW_REQUIRES(mu_);
  void DropForgotten() KVSTOW_REQUIRES(mu_);
  bool Rests() const;
  void Failed(const char* what, const absl::Status& status);
  absl::StatusOr<OnDevice> Make(const Recipe& recipe, const KvSpec& spec,
                                std::shared_ptr<const Calibration> calibration);
  absl::Status EncodeTogether(const Made& made, std::span<const PageOfCodec> pages,
                              std::span<const size_t> which,
                              std::vector<std::optional<EncodedPage>>& out);
  // Returns whether the GPU may have a page of a get.
  bool MayDecode(const PageHeader& header, PageRange wanted) const;
  bool DecodeInto(const KvSpec& spec, const PageHeader& header,
                  std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                  DeviceBuffer& raw);
  absl::Status TryDecode(const KvSpec& spec, const PageHeader& header,
                         std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                         DeviceBuffer& raw);

  Device* const device_;
  const CalibrationStore& calibrations_;
  const Options options_;
  std::atomic<uint32_t> decodes_ = 0;  // that go now
  mutable Mutex mu_;
  std::vector<Entry> entries_ KVSTOW_GUARDED_BY(mu_);
  std::vector<PlainEntry> plain_ KVSTOW_GUARDED_BY(mu_);
  Time rests_until_ KVSTOW_GUARDED_BY(mu_){};
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_DEVICE_CODER_H_
