#include "kernels/device/device_pages.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/key_groups.h"

namespace kvstow {
namespace {

bool SamePlace(const SegmentInfo& a, const SegmentInfo& b) {
  return a.first_layer == b.first_layer && a.layer_count == b.layer_count && a.level == b.level &&
         a.token_class == b.token_class && a.bytes == b.bytes;
}

// How many whole levels the segments are; UNIMPLEMENTED unless the device's codec has the same.
absl::StatusOr<uint32_t> LevelsFor(const DeviceCodec& codec, const PageHeader& header,
                                   std::span<const std::optional<SharedBytes>> segments) {
  const std::vector<SegmentInfo> own = codec.Segments(header.tokens);
  const size_t runs = own.size() / codec.levels();
  const auto is_other = [](uint8_t c) { return c != 0; };
  if (!std::ranges::equal(own, header.segments, SamePlace) || segments.size() > own.size() ||
      std::ranges::any_of(header.token_classes, is_other)) {
    return absl::UnimplementedError("the page was not made by this codec");
  }
  const auto levels = static_cast<uint32_t>(segments.size() / runs);
  for (size_t i = 0; i < levels * runs; ++i) {
    if (!segments[i].has_value() || segments[i]->size() != own[i].bytes) {
      return absl::UnimplementedError("a segment of the page is missing");
    }
  }
  if (levels > 0 && segments.size() == levels * runs) return levels;
  return absl::UnimplementedError("the page does not end with a level");
}

// One after another.
SharedBytes Joined(std::span<const std::optional<SharedBytes>> segments) {
  if (segments.size() == 1) return *segments[0];
  size_t bytes = 0;
  for (const auto& s : segments) bytes += s->size();
  ByteBlock all(bytes);
  uint8_t* to = all.data();
  for (const auto& s : segments) to = std::ranges::copy(s->span(), to).out;
  return std::move(all).Share();
}

}  // namespace

absl::StatusOr<EncodedPage> EncodeOnDevice(const CodecOnDevice& on, const Codec& codec,
                                           const PageToEncode& page, const DeviceBuffer& raw) {
  if (!page.raw_digest.has_value() || page.raw.size() != PageBytes(codec.spec(), page.tokens)) {
    return absl::InvalidArgumentError("a page on a device comes with its digest and its bytes");
  }
  KVSTOW_ASSIGN_OR_RETURN(const bool coarse, KeysAreTooCoarse(codec, page));
  if (coarse) return absl::UnimplementedError("the page needs groups of K by channel");
  KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBuffer> coded,
                          on.device.Allocate(on.codec.CodedBytes(page.tokens)));
  const EncodeJob job{.tokens = page.tokens, .raw = &raw, .coded = coded.get()};
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<PageCoding> coding,
                          on.codec.Encode({&job, 1}, /*want_gains=*/true));
  if (!coding[0].coded) return absl::UnimplementedError("the page must be kept exactly");
  KVSTOW_ASSIGN_OR_RETURN(const SharedBytes bytes, on.device.Load(coded));
  EncodedPage out{.header = NewPageHeader(codec, page)};
  out.header.segments = on.codec.Segments(page.tokens);
  size_t at = 0;
  for (size_t i = 0; i < out.header.segments.size(); ++i) {
    SegmentInfo& segment = out.header.segments[i];
    // A block each: a store drops them one by one.
    out.segments.push_back(SharedBytes::CopyOf(bytes.span().subspan(at, segment.bytes)));
    segment.gain = coding[0].gains[i];
    segment.digest = Xxh3(out.segments.back().span());
    at += segment.bytes;
  }
  out.header_bytes = SharedBytes::Take(SerializePageHeader(out.header));
  return out;
}

absl::Status DecodeOnDevice(const CodecOnDevice& on, const PageHeader& header,
                            std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                            DeviceBuffer& raw) {
  const auto all = [](uint32_t have, uint32_t first, uint32_t count) {
    return first == 0 && (count == 0 || count == have);
  };
  if (header.exact || !all(header.layers, wanted.layers.first, wanted.layers.count) ||
      !all(header.tokens, wanted.tokens.first, wanted.tokens.count)) {
    return absl::UnimplementedError("devices decode whole pages, and check no raw digest");
  }
  if (header.pipeline != on.codec.pipeline()) {
    return absl::UnimplementedError("the page was made by another recipe");
  }
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t levels, LevelsFor(on.codec, header, segments));
  KVSTOW_ASSIGN_OR_RETURN(const auto coded, on.device.Store(Joined(segments)));
  const DecodeJob job{.tokens = header.tokens, .levels = levels, .coded = coded.get(), .raw = &raw};
  return on.codec.Decode({&job, 1});
}

}  // namespace kvstow
