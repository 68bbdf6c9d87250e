// What a Redis server says (RESP2), read from bytes as they come.
//
// A value, a reader and free functions; one thread at a time uses a reader. Nothing of the server
// is trusted: a length beyond the limits, a line without an end, too many or too deep elements are
// INVALID_ARGUMENT, and nothing is allocated for them. After an error the reader is good for
// nothing.
//
// A bulk string on its own, which is what GET answers, is read straight into the block that callers
// get. All other replies are read by hiredis.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_REPLY_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_REPLY_H_

#include <hiredis/read.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/shared_bytes.h"

namespace kvstow {

inline constexpr size_t kMaxRedisValueBytes = 64 << 20;
inline constexpr size_t kMaxRedisReplyBytes = 4 << 20;  // of a reply that is no bulk string
inline constexpr size_t kMaxRedisElements = 100'000;    // of one reply, at all depths

struct RedisReply {
  enum class Kind : uint8_t { kStatus, kError, kInteger, kBulk, kNil, kArray };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;                  // a status, an error, or a bulk string within an array
  SharedBytes bytes;                 // a bulk string on its own
  std::vector<RedisReply> elements;  // of an array

  bool is_error() const { return kind == Kind::kError; }
  // Returns the text of whatever has one.
  absl::string_view view() const {
    if (bytes.empty()) return text;
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

class RedisReplyReader {
 public:
  RedisReplyReader();
  ~RedisReplyReader();
  RedisReplyReader(const RedisReplyReader&) = delete;
  RedisReplyReader& operator=(const RedisReplyReader&) = delete;

  // Returns where the next bytes go: first the one, then the other. The first may be empty.
  std::array<std::span<uint8_t>, 2> Space();
  // Takes the first `bytes` of Space() as come. Appends the replies that are whole now.
  absl::Status Took(size_t bytes, std::vector<RedisReply>& replies);
  // The same for bytes that stand elsewhere.
  absl::Status Feed(std::span<const uint8_t> bytes, std::vector<RedisReply>& replies);

 private:
  // Each takes some of the front of `bytes`.
  absl::Status TakeBody(std::span<const uint8_t>& bytes, std::vector<RedisReply>& replies);
  absl::Status TakeBulkHeader(std::span<const uint8_t>& bytes, std::vector<RedisReply>& replies);
  absl::Status TakeLine(std::span<const uint8_t>& bytes, std::vector<RedisReply>& replies);
  absl::Status EndBody(std::vector<RedisReply>& replies);

  const std::unique_ptr<uint8_t[]> scratch_;
  std::string header_;  // of a bulk string, as far as it came: "$1048"
  bool in_body_ = false;
  ByteBlock body_;
  size_t filled_ = 0;  // of the body
  std::string ending_;
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader_;
  size_t fed_ = 0;       // bytes of its reply that hiredis has
  size_t elements_ = 0;  // of that reply
};

// What an error of Redis means for a call: RESOURCE_EXHAUSTED when its memory is full,
// PERMISSION_DENIED when it wants another login, INVALID_ARGUMENT when it does not take the
// command, UNAVAILABLE for all else. `node` names the server.
absl::Status StatusOfRedisError(absl::string_view node, absl::string_view error);

// True for an error that goes by itself: the server loads its data, or slots are on their way.
bool RedisErrorPasses(absl::string_view error);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_REPLY_H_
