// Where names lie in a Redis Cluster: slots, the map of them, and redirections.
//
// Values and free functions; thread-safe as values are. Replies are not trusted: a slot, a port or
// a host that cannot be makes the whole map INVALID_ARGUMENT, and an error that only looks like a
// redirection is none.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_SLOTS_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_SLOTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/remote/redis_reply.h"

namespace kvstow {

inline constexpr uint16_t kRedisSlots = 16384;
inline constexpr size_t kMaxRedisNodes = 2000;  // a cluster has 1000 at most, its makers say

// CRC-16/XMODEM, as the cluster's specification has it.
uint16_t RedisCrc16(absl::string_view bytes);
// Returns the slot of a name: that of its hash tag, "{...}", where it has one that is not empty.
uint16_t RedisSlotOf(absl::string_view name);

struct RedisAddress {
  std::string host;
  uint16_t port = 0;
  // "10.0.0.1:6379", "[::1]:6379"
  std::string text() const;
  bool operator==(const RedisAddress&) const = default;
};
// Reads HOST:PORT; an IPv6 host may be in brackets. Nothing when it is none.
std::optional<RedisAddress> ParseRedisAddress(absl::string_view text);

struct RedisShard {
  RedisAddress primary;
  std::vector<RedisAddress> replicas;
};

class RedisSlotMap {
 public:
  RedisSlotMap() : shard_of_(kRedisSlots, kNobody) {}
  // All slots at one server.
  static RedisSlotMap Single(RedisAddress address);
  // Reads what CLUSTER SLOTS answers. Servers that do not know their own host are at `asked_host`.
  static absl::StatusOr<RedisSlotMap> Parse(const RedisReply& reply, absl::string_view asked_host);

  // Returns who has the slot; null when nobody has.
  const RedisShard* Find(uint16_t slot) const;
  // Notes that `slot` moved. The shard of that primary keeps its replicas, if it is known.
  void Move(uint16_t slot, const RedisAddress& primary);
  const std::vector<RedisShard>& shards() const { return shards_; }
  bool empty() const { return shards_.empty(); }
  // How many slots nobody has.
  size_t holes() const;

 private:
  static constexpr uint16_t kNobody = UINT16_MAX;
  uint16_t ShardOf(const RedisAddress& primary);

  std::vector<RedisShard> shards_;
  std::vector<uint16_t> shard_of_;  // by slot
};

struct RedisRedirect {
  bool ask = false;  // for one command only: the slot is on its way
  uint16_t slot = 0;
  RedisAddress to;
};
// Reads "MOVED 3999 127.0.0.1:6381" and "ASK ...". A redirection without a host means `asked_host`.
std::optional<RedisRedirect> ParseRedisRedirect(absl::string_view error,
                                                absl::string_view asked_host);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_SLOTS_H_
