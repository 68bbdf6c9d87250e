#include "service/events/event_batch.h"

#include <bit>
#include <utility>

namespace kvstow {
namespace {

// kvstowd has one medium for all tiers, and one rank (docs/decisions/0067-kv-events.md).
constexpr absl::string_view kMedium = "STORAGE";
constexpr uint64_t kRank = 0;

void PutByte(std::string& out, uint64_t byte) { out.push_back(static_cast<char>(byte)); }

void PutBigEndian(std::string& out, uint64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) PutByte(out, value >> (8 * i) & 0xFF);
}

// The marker of the shortest form that fits, and the number.
void PutUint(std::string& out, uint64_t value) {
  if (value < 0x80) return PutByte(out, value);
  const int log = value <= UINT8_MAX ? 0 : value <= UINT16_MAX ? 1 : value <= UINT32_MAX ? 2 : 3;
  PutByte(out, 0xCC + log);
  PutBigEndian(out, value, 1 << log);
}

void PutDouble(std::string& out, double value) {
  PutByte(out, 0xCB);
  PutBigEndian(out, std::bit_cast<uint64_t>(value), 8);
}

void PutNil(std::string& out) { PutByte(out, 0xC0); }

void PutString(std::string& out, absl::string_view text) {
  if (text.size() < 32) {
    PutByte(out, 0xA0 + text.size());
  } else {
    const int log = text.size() <= UINT8_MAX ? 0 : text.size() <= UINT16_MAX ? 1 : 2;
    PutByte(out, 0xD9 + log);
    PutBigEndian(out, text.size(), 1 << log);
  }
  out.append(text.data(), text.size());
}

void PutArray(std::string& out, size_t size) {
  if (size < 16) return PutByte(out, 0x90 + size);
  const bool small = size <= UINT16_MAX;
  PutByte(out, small ? 0xDC : 0xDD);
  PutBigEndian(out, size, small ? 2 : 4);
}

void PutMap(std::string& out, size_t size) { PutByte(out, 0x80 + size); }  // below 16

void PutUints(std::string& out, std::span<const uint64_t> values) {
  PutArray(out, values.size());
  for (const uint64_t value : values) PutUint(out, value);
}

void PutType(std::string& out, size_t fields, absl::string_view type) {
  PutMap(out, fields);
  PutString(out, "type");
  PutString(out, type);
}

}  // namespace

void EventBatch::AddStored(std::span<const uint64_t> hashes, uint32_t block_size,
                           absl::string_view adapter) {
  PutType(body_, 8, "BlockStored");
  PutString(body_, "block_hashes");
  PutUints(body_, hashes);
  PutString(body_, "parent_block_hash");
  PutNil(body_);
  PutString(body_, "token_ids");
  PutArray(body_, 0);
  PutString(body_, "block_size");
  PutUint(body_, block_size);
  PutString(body_, "lora_id");
  PutNil(body_);
  PutString(body_, "medium");
  PutString(body_, kMedium);
  PutString(body_, "lora_name");
  adapter.empty() ? PutNil(body_) : PutString(body_, adapter);
  ++events_;
  hashes_ += hashes.size();
}

void EventBatch::AddRemoved(std::span<const uint64_t> hashes) {
  PutType(body_, 3, "BlockRemoved");
  PutString(body_, "block_hashes");
  PutUints(body_, hashes);
  PutString(body_, "medium");
  PutString(body_, kMedium);
  ++events_;
  hashes_ += hashes.size();
}

void EventBatch::AddCleared() {
  PutType(body_, 1, "AllBlocksCleared");
  ++events_;
}

std::string EventBatch::Finish(double seconds) {
  std::string out;
  PutArray(out, 3);
  PutDouble(out, seconds);
  PutArray(out, std::exchange(events_, 0));
  out += body_;
  PutUint(out, kRank);
  body_.clear();
  hashes_ = 0;
  return out;
}

uint64_t EventHash(absl::string_view key) {
  uint64_t hash = 0;
  for (const char byte : key.substr(key.size() < 8 ? 0 : key.size() - 8)) {
    hash = hash << 8 | static_cast<uint8_t>(byte);
  }
  return hash;
}

}  // namespace kvstow
