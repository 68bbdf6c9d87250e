// Readers of public traces of LLM serving: requests with the blocks of their prompts.
//
// Reads two schemas, both JSON Lines. The first request tells them apart. The reader skips fields
// that are not named here:
//
//   Mooncake (FAST'25)       timestamp (ms), input_length, output_length, hash_ids; a block is 512
//                            tokens
//   Bailian (Alibaba, ATC'25) the same with timestamp in seconds, and chat_id, parent_chat_id,
//                            turn, type; a block is 16 tokens
//
// A file may be compressed with gzip. TraceReader streams requests. LoadTrace keeps all of them and
// gives equal prefixes equal numbers, for simulators and planners.
//
// Not thread-safe. Errors: NOT_FOUND and PERMISSION_DENIED for the file, INVALID_ARGUMENT for bad
// content (names file, line and field), DATA_LOSS for a damaged gzip stream. A file of no requests
// is an error too.
#ifndef KVSTOW_STORAGE_TRACE_TRACE_READER_H_
#define KVSTOW_STORAGE_TRACE_TRACE_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace kvstow {

enum class TraceSchema { kMooncake, kBailian };
const char* TraceSchemaName(TraceSchema schema);  // "mooncake", "bailian"
uint32_t TraceBlockTokens(
    TraceSchema schema);  // tokens of a full block; a prompt's last block has less

struct TraceRequest {
  static constexpr int64_t kNoSession = -1;

  double time_s = 0;  // since the trace began
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> blocks;  // of the prompt, first to last
  // The first chat of the conversation that the request goes on with, where the trace names it
  // (Bailian); the file has a chat before those that follow it.
  int64_t session = kNoSession;
};

class TraceReader {
 public:
  // Reads as far as the first request.
  static absl::StatusOr<TraceReader> Open(const std::string& path);
  TraceReader(TraceReader&&) noexcept;
  TraceReader& operator=(TraceReader&&) noexcept;
  ~TraceReader();

  TraceSchema schema() const;
  // Reads the next request in the file's order into `request`, whose blocks are the file's ids;
  // false at the end. After an error the reader is at its end.
  absl::StatusOr<bool> Next(TraceRequest& request);
  // Returns how far the file is read, in its own (perhaps compressed) bytes.
  uint64_t bytes_read() const;
  uint64_t file_bytes() const;

 private:
  class Impl;
  explicit TraceReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A trace in memory. A block is a place in the tree of prefixes: two requests share a block only
// when they share all blocks before it, whether or not the file's ids say so by themselves.
struct Trace {
  static constexpr uint32_t kNoParent = UINT32_MAX;

  TraceSchema schema = TraceSchema::kMooncake;
  uint32_t block_tokens = 0;
  std::vector<TraceRequest> requests;  // by time; blocks are places in `parents`
  std::vector<uint32_t> parents;       // of each distinct block; kNoParent at the start of a prompt
  uint64_t references = 0;             // blocks of all requests
};

// Calls `progress` after every request with the bytes read and the bytes of the file.
absl::StatusOr<Trace> LoadTrace(
    const std::string& path,
    absl::FunctionRef<void(uint64_t read, uint64_t total)> progress = [](uint64_t, uint64_t) {});

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_TRACE_TRACE_READER_H_
