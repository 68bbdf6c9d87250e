#include "proto/wire/chunk.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // wire types
constexpr uint32_t kDataField = 15;
constexpr uint8_t kDataTag = (kDataField << 3) | kBytes;
constexpr size_t kMaxHeadBytes = kMaxMessageBytes - kMaxChunkBytes;  // fields before `data`
constexpr size_t kMaxVarintBytes = 10;

// A slice that keeps `bytes` alive until gRPC has sent it.
grpc::Slice Reference(const SharedBytes& bytes) {
  auto* const held = new SharedBytes(bytes);
  return grpc::Slice(
      const_cast<uint8_t*>(held->data()), held->size(),
      [](void* p) { delete static_cast<SharedBytes*>(p); }, held);
}

uint8_t* PutVarint(uint64_t value, uint8_t* out) {
  for (; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value) | 0x80;
  *out++ = static_cast<uint8_t>(value);
  return out;
}

grpc::ByteBuffer Write(const google::protobuf::MessageLite& message,
                       std::span<const SharedBytes> payload) {
  uint64_t bytes = 0;
  for (const SharedBytes& p : payload) bytes += p.size();

  std::string head(message.ByteSizeLong() + 1 + kMaxVarintBytes, '\0');
  auto* const begin = reinterpret_cast<uint8_t*>(head.data());
  uint8_t* end = message.SerializeWithCachedSizesToArray(begin);
  if (bytes > 0) {
    *end++ = kDataTag;
    end = PutVarint(bytes, end);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(payload.size() + 1);
  slices.emplace_back(begin, static_cast<size_t>(end - begin));
  for (const SharedBytes& p : payload) {
    if (!p.empty()) slices.push_back(Reference(p));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Walks bytes that lie in several slices.
class Cursor {
 public:
  explicit Cursor(std::span<const grpc::Slice> slices) : slices_(slices) {
    for (const grpc::Slice& s : slices) remaining_ += s.size();
  }

  uint64_t remaining() const { return remaining_; }

  // False when fewer than `n` bytes are left. `out` may be null: the bytes are skipped.
  bool Take(uint64_t n, uint8_t* out) {
    if (n > remaining_) return false;
    remaining_ -= n;
    while (n > 0) {
      const size_t here = std::min<uint64_t>(n, slices_[slice_].size() - offset_);
      if (out != nullptr) {
        std::memcpy(out, slices_[slice_].begin() + offset_, here);
        out += here;
      }
      n -= here;
      offset_ += here;
      if (offset_ == slices_[slice_].size()) {
        ++slice_;
        offset_ = 0;
      }
    }
    return true;
  }

  bool TakeVarint(uint64_t& value) {
    value = 0;
    for (size_t i = 0; i < kMaxVarintBytes; ++i) {
      uint8_t byte = 0;
      if (!Take(1, &byte)) return false;
      value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

  // The rest as slices; those in the middle are shared, the first is cut.
  std::vector<grpc::Slice> TakeRest() {
    std::vector<grpc::Slice> out;
    for (; slice_ < slices_.size(); ++slice_, offset_ = 0) {
      if (offset_ == slices_[slice_].size()) continue;
      out.push_back(offset_ == 0 ? slices_[slice_]
                                 : slices_[slice_].sub(offset_, slices_[slice_].size()));
    }
    remaining_ = 0;
    return out;
  }

 private:
  const std::span<const grpc::Slice> slices_;
  size_t slice_ = 0, offset_ = 0;
  uint64_t remaining_ = 0;
};

absl::Status Malformed(const google::protobuf::MessageLite& message, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(message.GetTypeName(), ": ", what, "; the message is malformed"));
}

// Moves `cursor` behind the next field, or behind the length of `data` when that is next.
// `head_bytes`: where the fields before `data` end.
absl::Status SkipToData(const google::protobuf::MessageLite& message, Cursor& cursor,
                        uint64_t& head_bytes, bool& found) {
  const uint64_t total = cursor.remaining();
  found = false;
  while (cursor.remaining() > 0) {
    head_bytes = total - cursor.remaining();
    uint64_t tag = 0, length = 0;
    if (!cursor.TakeVarint(tag)) return Malformed(message, "a field's tag is cut short");
    const uint64_t field = tag >> 3;
    bool whole = true;
    switch (tag & 7) {
      case kVarint:
        whole = cursor.TakeVarint(length);
        break;
      case kFixed64:
        whole = cursor.Take(8, nullptr);
        break;
      case kFixed32:
        whole = cursor.Take(4, nullptr);
        break;
      case kBytes:
        if (!cursor.TakeVarint(length)) return Malformed(message, "a field's length is cut short");
        if (field == kDataField) {
          found = true;
          if (length == cursor.remaining()) return absl::OkStatus();
          return Malformed(message,
                           absl::StrCat("`data` says ", length, " bytes and ", cursor.remaining(),
                                        " follow (it must come last)"));
        }
        whole = cursor.Take(length, nullptr);
        break;
      default:
        return Malformed(message, absl::StrCat("field ", field, " has an unknown wire type"));
    }
    if (!whole) return Malformed(message, absl::StrCat("field ", field, " is cut short"));
  }
  head_bytes = total;
  return absl::OkStatus();
}

absl::StatusOr<ChunkPayload> Read(const grpc::ByteBuffer& buffer,
                                  google::protobuf::MessageLite& message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) {
    return Malformed(message, "its bytes cannot be read");
  }
  Cursor cursor(slices);
  uint64_t head_bytes = 0;
  bool found = false;
  KVSTOW_RETURN_IF_ERROR(SkipToData(message, cursor, head_bytes, found));
  if (head_bytes > kMaxHeadBytes) {
    return Malformed(message, absl::StrCat("its fields before `data` take ", head_bytes,
                                           " bytes, at most ", kMaxHeadBytes, " may be"));
  }
  std::string head(head_bytes, '\0');
  Cursor(slices).Take(head_bytes, reinterpret_cast<uint8_t*>(head.data()));
  if (!message.ParseFromString(head)) return Malformed(message, "its fields do not parse");

  ChunkPayload payload;
  if (!found) return payload;
  payload.bytes = cursor.remaining();
  if (payload.bytes > kMaxChunkBytes) {
    return Malformed(message, absl::StrCat("`data` has ", payload.bytes, " bytes, at most ",
                                           kMaxChunkBytes, " may be"));
  }
  payload.slices = cursor.TakeRest();
  return payload;
}

}  // namespace

grpc::ByteBuffer WriteChunk(const v1::PutRequest& message, std::span<const SharedBytes> payload) {
  return Write(message, payload);
}
grpc::ByteBuffer WriteChunk(const v1::GetResponse& message, std::span<const SharedBytes> payload) {
  return Write(message, payload);
}

absl::StatusOr<ChunkPayload> ReadChunk(const grpc::ByteBuffer& buffer, v1::PutRequest& message) {
  return Read(buffer, message);
}
absl::StatusOr<ChunkPayload> ReadChunk(const grpc::ByteBuffer& buffer, v1::GetResponse& message) {
  return Read(buffer, message);
}

grpc::ByteBuffer WriteMessage(const google::protobuf::MessageLite& message) {
  return Write(message, {});
}

absl::Status ReadMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite& message) {
  grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) {
    return Malformed(message, "its bytes cannot be read");
  }
  if (!message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return Malformed(message, "its fields do not parse");
  }
  return absl::OkStatus();
}

}  // namespace kvstow
