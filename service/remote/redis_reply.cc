#include "service/remote/redis_reply.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr size_t kScratchBytes = 16 << 10;
constexpr size_t kHeaderBytes = 24;  // "$" and any length
constexpr size_t kShownBytes = 120;  // of an error's text

absl::Status NoRedis(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("what came is no reply of a Redis: ", what));
}

// hiredis calls these as it reads. Each makes a reply: the root, or an element of its parent.
RedisReply* MakeReply(const redisReadTask* task, RedisReply::Kind kind) {
  RedisReply* reply = nullptr;
  if (task->parent == nullptr) {
    reply = new RedisReply;
  } else {
    auto* const parent = static_cast<RedisReply*>(task->parent->obj);
    reply = &parent->elements[static_cast<size_t>(task->idx)];
  }
  reply->kind = kind;
  return reply;
}

void* MakeString(const redisReadTask* task, char* text, size_t size) {
  const auto kind = task->type == REDIS_REPLY_ERROR    ? RedisReply::Kind::kError
                    : task->type == REDIS_REPLY_STATUS ? RedisReply::Kind::kStatus
                                                       : RedisReply::Kind::kBulk;
  RedisReply* const reply = MakeReply(task, kind);
  reply->text.assign(text, size);
  return reply;
}

void* MakeArray(const redisReadTask* task, int elements) {
  size_t& made = *static_cast<size_t*>(task->privdata);
  if (elements < 0 || made + static_cast<size_t>(elements) > kMaxRedisElements) return nullptr;
  made += static_cast<size_t>(elements);
  RedisReply* const reply = MakeReply(task, RedisReply::Kind::kArray);
  reply->elements.resize(static_cast<size_t>(elements));
  return reply;
}

void* MakeInteger(const redisReadTask* task, long long value) {
  RedisReply* const reply = MakeReply(task, RedisReply::Kind::kInteger);
  reply->integer = value;
  return reply;
}

void* MakeNil(const redisReadTask* task) { return MakeReply(task, RedisReply::Kind::kNil); }

void FreeReply(void* root) { delete static_cast<RedisReply*>(root); }

redisReplyObjectFunctions functions = {MakeString, MakeArray, MakeInteger, MakeNil, FreeReply};

}  // namespace

RedisReplyReader::RedisReplyReader()
    : scratch_(std::make_unique_for_overwrite<uint8_t[]>(kScratchBytes)),
      reader_(redisReaderCreateWithFunctions(&functions), redisReaderFree) {
  reader_->privdata = &elements_;
}

RedisReplyReader::~RedisReplyReader() = default;

std::array<std::span<uint8_t>, 2> RedisReplyReader::Space() {
  const std::span<uint8_t> scratch(scratch_.get(), kScratchBytes);
  if (!in_body_) return {std::span<uint8_t>(), scratch};
  return {body_.span().subspan(filled_), scratch};
}

absl::Status RedisReplyReader::Took(size_t bytes, std::vector<RedisReply>& replies) {
  if (in_body_) {
    const size_t direct = std::min(bytes, body_.size() - filled_);
    filled_ += direct;
    bytes -= direct;
  }
  return Feed({scratch_.get(), bytes}, replies);
}

absl::Status RedisReplyReader::Feed(std::span<const uint8_t> bytes,
                                    std::vector<RedisReply>& replies) {
  while (!bytes.empty()) {
    if (in_body_) {
      KVSTOW_RETURN_IF_ERROR(TakeBody(bytes, replies));
    } else if (!header_.empty() || (fed_ == 0 && bytes[0] == '$')) {
      KVSTOW_RETURN_IF_ERROR(TakeBulkHeader(bytes, replies));
    } else {
      KVSTOW_RETURN_IF_ERROR(TakeLine(bytes, replies));
    }
  }
  return absl::OkStatus();
}

absl::Status RedisReplyReader::TakeBody(std::span<const uint8_t>& bytes,
                                        std::vector<RedisReply>& replies) {
  const size_t more = std::min(bytes.size(), body_.size() - filled_);
  if (more > 0) std::memcpy(body_.data() + filled_, bytes.data(), more);
  filled_ += more;
  bytes = bytes.subspan(more);
  const size_t end = std::min(bytes.size(), 2 - ending_.size());
  ending_.append(reinterpret_cast<const char*>(bytes.data()), end);
  bytes = bytes.subspan(end);
  return ending_.size() == 2 ? EndBody(replies) : absl::OkStatus();
}

absl::Status RedisReplyReader::EndBody(std::vector<RedisReply>& replies) {
  if (ending_ != "\r\n") return NoRedis("a value does not end where it should");
  replies.push_back({.kind = RedisReply::Kind::kBulk, .bytes = std::move(body_).Share()});
  body_ = ByteBlock();
  filled_ = 0;
  in_body_ = false;
  ending_.clear();
  return absl::OkStatus();
}

absl::Status RedisReplyReader::TakeBulkHeader(std::span<const uint8_t>& bytes,
                                              std::vector<RedisReply>& replies) {
  const auto end = std::find(bytes.begin(), bytes.end(), '\n');
  const size_t size = static_cast<size_t>(end - bytes.begin()) + (end == bytes.end() ? 0 : 1);
  if (header_.size() + size > kHeaderBytes) return NoRedis("a length without an end");
  header_.append(reinterpret_cast<const char*>(bytes.data()), size);
  bytes = bytes.subspan(size);
  if (header_.back() != '\n') return absl::OkStatus();
  absl::string_view digits = header_;
  if (!absl::EndsWith(digits, "\r\n")) return NoRedis("a length without an end");
  digits = digits.substr(1, digits.size() - 3);
  uint64_t length = 0;
  const bool nil = digits == "-1";
  const bool number = !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
    return c >= '0' && c <= '9';
  }) && absl::SimpleAtoi(digits, &length);
  header_.clear();
  if (nil) {
    replies.emplace_back();
    return absl::OkStatus();
  }
  if (!number) return NoRedis("a length that is no number");
  if (length > kMaxRedisValueBytes) return NoRedis(absl::StrCat("a value of ", length, " bytes"));
  body_ = ByteBlock(length);
  in_body_ = true;
  return absl::OkStatus();
}

// Every reply ends with a line feed. So bytes up to the next one never reach into the reply after
// that which hiredis reads, unless the server lies: hiredis does not look at what ends a text.
absl::Status RedisReplyReader::TakeLine(std::span<const uint8_t>& bytes,
                                        std::vector<RedisReply>& replies) {
  const auto end = std::find(bytes.begin(), bytes.end(), '\n');
  const size_t size = static_cast<size_t>(end - bytes.begin()) + (end == bytes.end() ? 0 : 1);
  fed_ += size;
  if (fed_ > kMaxRedisReplyBytes) return NoRedis("it does not end");
  const uint8_t last = bytes[size - 1];
  redisReaderFeed(reader_.get(), reinterpret_cast<const char*>(bytes.data()), size);
  bytes = bytes.subspan(size);
  void* root = nullptr;
  if (redisReaderGetReply(reader_.get(), &root) != REDIS_OK) {
    return NoRedis(absl::CHexEscape(reader_->errstr));
  }
  if (root == nullptr) return absl::OkStatus();
  const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(root));
  if (reader_->pos != reader_->len || last != '\n')
    return NoRedis("a text does not end where it should");
  replies.push_back(std::move(*reply));
  fed_ = elements_ = 0;
  return absl::OkStatus();
}

absl::Status StatusOfRedisError(absl::string_view node, absl::string_view error) {
  const std::string text =
      absl::StrCat("redis ", node, ": ", absl::CHexEscape(error.substr(0, kShownBytes)));
  const auto is = [&](absl::string_view code) { return absl::StartsWith(error, code); };
  if (is("OOM ") || absl::StrContains(error, "maxmemory")) {
    return absl::ResourceExhaustedError(absl::StrCat(text,
                                                     " (raise its maxmemory, or let it evict: "
                                                     "maxmemory-policy allkeys-lru)"));
  }
  if (is("NOAUTH") || is("WRONGPASS") || is("NOPERM") || is("DENIED") || is("ERR AUTH") ||
      is("ERR invalid password") || is("ERR Client sent AUTH")) {
    return absl::PermissionDeniedError(
        absl::StrCat(text, " (look at the user and the password, and at the server's ACL)"));
  }
  if (is("WRONGTYPE")) {
    return absl::InvalidArgumentError(absl::StrCat(text, " (does another program write here?)"));
  }
  if (is("ERR Protocol error") || is("ERR string exceeds") || is("ERR unknown command") ||
      is("ERR wrong number") || is("ERR syntax") || is("ERR invalid expire")) {
    return absl::InvalidArgumentError(text);
  }
  return absl::UnavailableError(text);
}

bool RedisErrorPasses(absl::string_view error) {
  for (const absl::string_view code :
       {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "BUSY"}) {
    if (absl::StartsWith(error, code)) return true;
  }
  return false;
}

}  // namespace kvstow
