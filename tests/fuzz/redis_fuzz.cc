// What a Redis may say: replies in pieces of any size, the map of slots, and redirections. What is
// read does not depend on the pieces, and is within its bounds.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/digest.h"
#include "service/remote/redis_reply.h"
#include "service/remote/redis_slots.h"

using namespace kvstow;

namespace {

void Must(bool holds) {
  if (!holds) std::abort();
}

bool Same(const RedisReply& a, const RedisReply& b) {
  return a.kind == b.kind && a.integer == b.integer && a.view() == b.view() &&
         std::equal(a.elements.begin(), a.elements.end(), b.elements.begin(), b.elements.end(),
                    Same);
}

bool Read(std::span<const uint8_t> bytes, size_t piece, std::vector<RedisReply>& replies) {
  RedisReplyReader reader;
  while (!bytes.empty()) {
    const auto some = bytes.first(std::min(piece, bytes.size()));
    if (!reader.Feed(some, replies).ok()) return false;
    bytes = bytes.subspan(some.size());
  }
  return true;
}

void UseMap(const RedisReply& reply) {
  auto map = RedisSlotMap::Parse(reply, "seed");
  if (!map.ok()) return;
  size_t holes = 0;
  for (uint32_t slot = 0; slot < kRedisSlots; ++slot) {
    const RedisShard* const shard = map->Find(static_cast<uint16_t>(slot));
    holes += shard == nullptr ? 1 : 0;
    Must(shard == nullptr || (shard->primary.port != 0 && !shard->primary.host.empty()));
  }
  Must(holes == map->holes());
  Must(map->shards().size() <= kMaxRedisNodes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  std::vector<RedisReply> whole, pieces;
  const bool good = Read(bytes, bytes.size() + 1, whole);
  Must(good == Read(bytes, size_t{data[0] % 13u} + 1, pieces));
  Must(std::equal(whole.begin(), whole.end(), pieces.begin(), pieces.end(), Same));
  for (const RedisReply& reply : whole) {
    UseMap(reply);
    if (!reply.is_error()) continue;
    (void)StatusOfRedisError("node", reply.text);
    (void)RedisErrorPasses(reply.text);
  }
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto redirect = ParseRedisRedirect(text, "seed");
  if (redirect.has_value()) {
    Must(redirect->slot < kRedisSlots && redirect->to.port != 0);
    const auto again = ParseRedisAddress(redirect->to.text());
    Must(again.has_value() && *again == redirect->to);
  }
  Must(RedisSlotOf(text) < kRedisSlots);
  return 0;
}
