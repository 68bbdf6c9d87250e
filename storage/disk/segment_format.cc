#include "storage/disk/segment_format.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// "kvSF" and "kvSB" as they stand in a file.
constexpr uint32_t kFileMagic = 0x4653766b;
constexpr uint32_t kBodyMagic = 0x4253766b;
constexpr uint32_t kInValue = 1, kInFile = 2, kSealedInValue = 3, kSealedInFile = 4;
constexpr size_t kPlaceBytes = 32;  // before its digest
constexpr size_t kFileHeaderBytes = 24;
constexpr size_t kSector = 512, kMarkBytes = 8;

// `seal` is empty, or the seal as it lies.
uint64_t PlaceDigest(std::span<const uint8_t> key, std::span<const uint8_t> place,
                     std::span<const uint8_t> seal) {
  ByteWriter all;
  all.PutBytes(key);
  all.PutBytes(place);
  all.PutBytes(seal);
  return Xxh3(AsBytes(all.bytes()));
}

}  // namespace

std::string SerializeSegmentValue(const std::string& key, const SegmentPlace& place,
                                  std::span<const uint8_t> body) {
  ByteWriter seal;
  if (place.sealed()) PutSeal(seal, place.seal);
  ByteWriter out;
  if (place.sealed()) {
    out.Put(place.file == 0 ? kSealedInValue : kSealedInFile);
  } else {
    out.Put(place.file == 0 ? kInValue : kInFile);
  }
  out.Put(place.length);
  out.Put(place.commit);
  out.Put(place.file);
  out.Put(place.offset);
  out.Put(PlaceDigest(AsBytes(key), AsBytes(out.bytes()), AsBytes(seal.bytes())));
  out.PutBytes(AsBytes(seal.bytes()));
  if (place.file == 0) out.PutBytes(body);
  return std::move(out).Take();
}

absl::StatusOr<SegmentValue> ParseSegmentValue(std::span<const uint8_t> key,
                                               std::span<const uint8_t> bytes) {
  ByteReader in(bytes);
  ByteReader place_in(in.GetBytes(kPlaceBytes));
  const auto digest = in.Get<uint64_t>();
  const auto kind = place_in.Get<uint32_t>();
  const bool sealed = kind == kSealedInValue || kind == kSealedInFile;
  const auto seal = sealed ? in.GetBytes(kSealBytes) : std::span<const uint8_t>();
  if (!in.ok() || digest != PlaceDigest(key, bytes.first(kPlaceBytes), seal)) {
    return absl::DataLossError("a segment's place fails its digest");
  }
  SegmentValue out;
  if (sealed) {
    KVSTOW_ASSIGN_OR_RETURN(out.place.seal, ParseSeal(seal));
  }
  out.place.length = place_in.Get<uint32_t>();
  out.place.commit = place_in.Get<uint64_t>();
  out.place.file = place_in.Get<uint64_t>();
  out.place.offset = place_in.Get<uint64_t>();
  const SegmentPlace& place = out.place;
  const bool in_value = kind == kInValue || kind == kSealedInValue;
  const bool in_file = kind == kInFile || kind == kSealedInFile;
  if (in_value && place.file == 0 && in.remaining() == place.length) {
    out.body = in.GetBytes(in.remaining());
    return out;
  }
  if (in_file && place.file != 0 && in.remaining() == 0 && place.offset % kDiskBlock == 0 &&
      place.offset >= kDiskBlock) {
    return out;
  }
  return absl::DataLossError("a segment's place contradicts itself");
}

std::optional<SegmentId> SegmentOfKey(std::span<const uint8_t> key) {
  if (key.size() != 10) return std::nullopt;
  SegmentId id;
  for (const uint8_t byte : key.first(8)) id.page = id.page << 8 | byte;
  id.index = static_cast<uint16_t>(key[8] << 8 | key[9]);
  return id;
}

std::string SegmentFileHeader(uint64_t number) {
  ByteWriter out;
  out.Put(kFileMagic);
  out.Put(kSegmentFileVersion);
  out.Put(uint16_t{0});
  out.Put(number);
  out.Put(Xxh3(AsBytes(out.bytes())));
  std::string block = std::move(out).Take();
  block.resize(kDiskBlock);
  return block;
}

absl::Status CheckSegmentFileHeader(std::span<const uint8_t> block, uint64_t number) {
  if (block.size() < kFileHeaderBytes) return absl::DataLossError("a segment file is cut short");
  ByteReader in(block);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint16_t>();
  const auto zero = in.Get<uint16_t>();
  const auto its_number = in.Get<uint64_t>();
  if (magic != kFileMagic || in.Get<uint64_t>() != Xxh3(block.first(kFileHeaderBytes - 8))) {
    return absl::DataLossError("a segment file without its header");
  }
  if (version != kSegmentFileVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "segment file version ", version, " is not known here, only ", kSegmentFileVersion));
  }
  if (zero != 0) {
    return absl::DataLossError(absl::StrCat("a segment file with ", zero, " behind its version"));
  }
  if (its_number == number) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("it is segment file ", its_number));
}

SealedDigest::SealedDigest(size_t body_bytes)
    : marks_((body_bytes + kSector - 1) / kSector * kMarkBytes) {}

void SealedDigest::Update(std::span<const uint8_t> bytes) {
  while (bytes.size() >= kSector) {
    std::memcpy(marks_.data() + used_, bytes.data(), kMarkBytes);
    used_ += kMarkBytes;
    bytes = bytes.subspan(kSector);
  }
  const size_t rest = std::min(bytes.size(), kMarkBytes);
  std::copy_n(bytes.begin(), rest, marks_.begin() + used_);
  used_ += rest;
}

uint64_t SealedDigest::Finish() const { return Xxh3(std::span(marks_).first(used_)); }

uint64_t DigestOfSealed(std::span<const uint8_t> body) {
  SealedDigest digest(body.size());
  digest.Update(body);
  return digest.Finish();
}

std::string ExtentTail(SegmentId id, uint32_t length, uint64_t digest) {
  ByteWriter out;
  out.PutBytes(std::vector<uint8_t>(ExtentBytes(length) - kTrailerBytes - length));
  const size_t padding = out.size();
  out.Put(kBodyMagic);
  out.Put(length);
  out.Put(id.page);
  out.Put(uint64_t{id.index});
  out.Put(digest);
  out.Put(Xxh3(AsBytes(out.bytes()).subspan(padding)));
  return std::move(out).Take();
}

absl::StatusOr<uint64_t> CheckExtent(std::span<const uint8_t> extent, SegmentId id,
                                     uint32_t length) {
  if (extent.size() == ExtentBytes(length)) {
    const auto trailer = extent.last(kTrailerBytes);
    ByteReader in(trailer);
    const bool this_one = in.Get<uint32_t>() == kBodyMagic && in.Get<uint32_t>() == length &&
                          in.Get<uint64_t>() == id.page && in.Get<uint64_t>() == id.index;
    const auto digest = in.Get<uint64_t>();
    if (this_one && in.Get<uint64_t>() == Xxh3(trailer.first(kTrailerBytes - 8))) return digest;
  }
  return absl::DataLossError("other bytes are where the segment should be");
}

}  // namespace kvstow
