#include "service/remote/redis_slots.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr size_t kHostBytes = 253;

constexpr std::array<uint16_t, 256> MakeTable() {
  std::array<uint16_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    unsigned crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
    table[i] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kTable = MakeTable();

absl::Status BadMap(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("CLUSTER SLOTS: ", what));
}

bool GoodHost(absl::string_view host) {
  return !host.empty() && host.size() <= kHostBytes &&
         std::all_of(host.begin(), host.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' ||
                  c == '%';
         });
}

std::optional<uint16_t> ParseNumber(absl::string_view text, uint32_t least, uint32_t limit) {
  uint32_t number = 0;
  const bool digits = !text.empty() && text.size() <= 5 &&
                      std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number) || number < least || number >= limit) {
    return std::nullopt;
  }
  return static_cast<uint16_t>(number);
}

// Reads [host, port, ...]. Nothing, and no error, for a server whose host nobody knows.
absl::StatusOr<std::optional<RedisAddress>> ParseNode(const RedisReply& node,
                                                      absl::string_view asked_host) {
  if (node.kind != RedisReply::Kind::kArray || node.elements.size() < 2) {
    return BadMap("a server is no list of host and port");
  }
  const RedisReply& host = node.elements[0];
  const RedisReply& port = node.elements[1];
  const bool text = host.kind == RedisReply::Kind::kBulk || host.kind == RedisReply::Kind::kStatus;
  if (!text && host.kind != RedisReply::Kind::kNil) return BadMap("a host is no text");
  if (port.kind != RedisReply::Kind::kInteger || port.integer < 0 || port.integer > 65535) {
    return BadMap("a port is no number from 0 to 65535");
  }
  if (host.view() == "?" || port.integer == 0) return std::optional<RedisAddress>();
  const absl::string_view name = host.view().empty() ? asked_host : host.view();
  if (!GoodHost(name)) return BadMap("a host has characters that no host has");
  return std::optional(RedisAddress{std::string(name), static_cast<uint16_t>(port.integer)});
}

}  // namespace

uint16_t RedisCrc16(absl::string_view bytes) {
  unsigned crc = 0;
  for (const char c : bytes) {
    crc = ((crc << 8) & 0xFFFF) ^ kTable[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return static_cast<uint16_t>(crc);
}

uint16_t RedisSlotOf(absl::string_view name) {
  const size_t open = name.find('{');
  if (open != absl::string_view::npos) {
    const size_t close = name.find('}', open + 1);
    if (close != absl::string_view::npos && close > open + 1) {
      name = name.substr(open + 1, close - open - 1);
    }
  }
  return RedisCrc16(name) % kRedisSlots;
}

std::string RedisAddress::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::optional<RedisAddress> ParseRedisAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return std::nullopt;
  const auto port = ParseNumber(text.substr(colon + 1), 1, 65536);
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return std::nullopt;
  if (!port.has_value() || !GoodHost(host)) return std::nullopt;
  return RedisAddress{std::string(host), *port};
}

RedisSlotMap RedisSlotMap::Single(RedisAddress address) {
  RedisSlotMap map;
  map.shards_.push_back({.primary = std::move(address)});
  std::fill(map.shard_of_.begin(), map.shard_of_.end(), uint16_t{0});
  return map;
}

absl::StatusOr<RedisSlotMap> RedisSlotMap::Parse(const RedisReply& reply,
                                                 absl::string_view asked_host) {
  if (reply.kind != RedisReply::Kind::kArray) return BadMap("the reply is no list");
  if (reply.elements.size() > kRedisSlots) return BadMap("there are more ranges than slots");
  RedisSlotMap map;
  size_t replicas = 0;
  for (const RedisReply& range : reply.elements) {
    if (range.kind != RedisReply::Kind::kArray || range.elements.size() < 3) {
      return BadMap("a range is no list of first, last and servers");
    }
    const RedisReply& first = range.elements[0];
    const RedisReply& last = range.elements[1];
    if (first.kind != RedisReply::Kind::kInteger || last.kind != RedisReply::Kind::kInteger ||
        first.integer < 0 || last.integer < first.integer || last.integer >= kRedisSlots) {
      return BadMap("a range is not within the slots");
    }
    KVSTOW_ASSIGN_OR_RETURN(const auto primary, ParseNode(range.elements[2], asked_host));
    if (!primary.has_value()) continue;
    const uint16_t shard = map.ShardOf(*primary);
    if (map.shards_.size() + replicas > kMaxRedisNodes) return BadMap("there are too many servers");
    for (size_t i = 3; i < range.elements.size(); ++i) {
      KVSTOW_ASSIGN_OR_RETURN(const auto replica, ParseNode(range.elements[i], asked_host));
      auto& all = map.shards_[shard].replicas;
      if (!replica.has_value() || std::find(all.begin(), all.end(), *replica) != all.end())
        continue;
      if (map.shards_.size() + ++replicas > kMaxRedisNodes) {
        return BadMap("there are too many servers");
      }
      all.push_back(*replica);
    }
    for (int64_t slot = first.integer; slot <= last.integer; ++slot) {
      if (map.shard_of_[slot] != kNobody) return BadMap("ranges overlap");
      map.shard_of_[slot] = shard;
    }
  }
  return map;
}

const RedisShard* RedisSlotMap::Find(uint16_t slot) const {
  if (slot >= kRedisSlots || shard_of_[slot] == kNobody) return nullptr;
  return &shards_[shard_of_[slot]];
}

void RedisSlotMap::Move(uint16_t slot, const RedisAddress& primary) {
  if (slot < kRedisSlots && shards_.size() < kMaxRedisNodes) shard_of_[slot] = ShardOf(primary);
}

size_t RedisSlotMap::holes() const {
  return static_cast<size_t>(std::count(shard_of_.begin(), shard_of_.end(), kNobody));
}

uint16_t RedisSlotMap::ShardOf(const RedisAddress& primary) {
  const auto at = std::find_if(shards_.begin(), shards_.end(),
                               [&](const RedisShard& shard) { return shard.primary == primary; });
  if (at != shards_.end()) return static_cast<uint16_t>(at - shards_.begin());
  shards_.push_back({.primary = primary});
  return static_cast<uint16_t>(shards_.size() - 1);
}

std::optional<RedisRedirect> ParseRedisRedirect(absl::string_view error,
                                                absl::string_view asked_host) {
  RedisRedirect out;
  if (absl::ConsumePrefix(&error, "ASK ")) {
    out.ask = true;
  } else if (!absl::ConsumePrefix(&error, "MOVED ")) {
    return std::nullopt;
  }
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(error, absl::MaxSplits(' ', 1));
  const auto slot = ParseNumber(words.first, 0, kRedisSlots);
  if (!slot.has_value()) return std::nullopt;
  out.slot = *slot;
  absl::string_view address = words.second;
  const bool same_host = absl::StartsWith(address, ":") && address.rfind(':') == 0;
  const auto to =
      ParseRedisAddress(same_host ? absl::StrCat(asked_host, address) : std::string(address));
  if (!to.has_value()) return std::nullopt;
  out.to = *to;
  return out;
}

}  // namespace kvstow
