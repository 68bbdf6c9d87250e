#include "service/operators/lookup_wire.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // wire types
constexpr uint32_t Tag(uint32_t field, uint32_t type) { return field << 3 | type; }

// The fields of LookupRequest, LookupResponse and PageInfo in kv_cache.proto.
constexpr uint32_t kSpace = Tag(1, kBytes), kKeys = Tag(2, kBytes), kLease = Tag(3, kVarint),
                   kFingerprint = Tag(4, kBytes);
constexpr uint32_t kPages = 1, kTokens = 2, kGranted = 3, kTtl = 4, kInfo = 5;
constexpr uint32_t kPageTokens = 1, kPageTier = 2, kPageLevels = 3, kPageStored = 4;
// At most: tags, a varint of 64 bits each, the length of a PageInfo and of its tier's name.
constexpr size_t kMaxHeadBytes = 4 * 11, kMaxInfoBytes = 2 + 3 * 11 + 2 + 8;

bool ReadBytes(CodedInputStream& in, absl::string_view& out) {
  uint32_t bytes = 0;
  const void* data = nullptr;
  int available = 0;
  if (!in.ReadVarint32(&bytes)) return false;
  in.GetDirectBufferPointerInline(&data, &available);
  if (bytes > static_cast<uint32_t>(available)) return false;
  out = {static_cast<const char*>(data), bytes};
  return in.Skip(static_cast<int>(bytes));
}

bool SkipField(CodedInputStream& in, uint32_t type) {
  uint64_t value = 0;
  absl::string_view bytes;
  switch (type) {
    case kVarint:
      return in.ReadVarint64(&value);
    case kFixed64:
      return in.Skip(8);
    case kFixed32:
      return in.Skip(4);
    case kBytes:
      return ReadBytes(in, bytes);
    default:
      return false;
  }
}

uint8_t* PutNumber(uint32_t field, uint64_t value, uint8_t* out) {
  if (value == 0) return out;
  *out++ = static_cast<uint8_t>(Tag(field, kVarint));
  return CodedOutputStream::WriteVarint64ToArray(value, out);
}

// Writes a message within a message, behind the byte of its length.
uint8_t* PutInfo(const FoundPage& page, uint8_t* out) {
  uint8_t* const begin = out;
  out = PutNumber(kPageTokens, page.tokens, out);
  const absl::string_view tier = page.remote ? "remote" : TierName(page.tier);
  *out++ = static_cast<uint8_t>(Tag(kPageTier, kBytes));
  *out++ = static_cast<uint8_t>(tier.size());
  out = std::copy(tier.begin(), tier.end(), out);
  out = PutNumber(kPageLevels, page.levels, out);
  out = PutNumber(kPageStored, page.stored_bytes, out);
  begin[-1] = static_cast<uint8_t>(out - begin);
  return out;
}

}  // namespace

absl::StatusOr<LookupQuery> ReadLookupRequest(const grpc::Slice& message) {
  const auto malformed = [](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("kvstow.v1.LookupRequest: ", what, "; the message is malformed"));
  };
  LookupQuery query;
  CodedInputStream in(message.begin(), static_cast<int>(message.size()));
  while (const uint32_t tag = in.ReadTag()) {
    absl::string_view key;
    uint64_t lease = 0;
    bool whole = true;
    switch (tag) {
      case kSpace:
        whole = ReadBytes(in, query.space);
        break;
      case kFingerprint:
        whole = ReadBytes(in, query.fingerprint);
        break;
      case kKeys:
        whole = ReadBytes(in, key);
        if (query.keys.size() == kMaxKeysPerCall) {
          return absl::InvalidArgumentError(
              absl::StrCat("keys: too many, at most ", kMaxKeysPerCall, " in one call"));
        }
        query.keys.push_back(key);
        break;
      case kLease:
        whole = in.ReadVarint64(&lease);
        query.lease = lease != 0;
        break;
      default:
        whole = SkipField(in, tag & 7);
    }
    if (!whole) return malformed(absl::StrCat("field ", tag >> 3, " is cut short"));
  }
  if (!in.ConsumedEntireMessage()) return malformed("a field's tag is none");
  return query;
}

grpc::Slice WriteLookupResponse(const PrefixMatch& match) {
  std::string bytes(kMaxHeadBytes + match.pages.size() * kMaxInfoBytes, '\0');
  auto* const begin = reinterpret_cast<uint8_t*>(bytes.data());
  const auto ttl = std::chrono::duration_cast<std::chrono::milliseconds>(match.ttl).count();
  uint8_t* out = PutNumber(kPages, match.pages.size(), begin);
  out = PutNumber(kTokens, match.tokens(), out);
  out = PutNumber(kGranted, match.lease, out);
  out = PutNumber(kTtl, match.lease != 0 ? static_cast<uint64_t>(ttl) : 0, out);
  for (const FoundPage& page : match.pages) {
    *out++ = static_cast<uint8_t>(Tag(kInfo, kBytes));
    out = PutInfo(page, out + 1);
  }
  return grpc::Slice(begin, static_cast<size_t>(out - begin));
}

}  // namespace kvstow
