// Pages on their way to a server and back: the argument and the result of a call of client.h for
// each page, and its callbacks.
//
// Values. The caller owns the buffers.
#ifndef KVSTOW_CLIENT_PAGES_H_
#define KVSTOW_CLIENT_PAGES_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/page/page.h"

namespace kvstow {

// The outcome for a page; the same words as kvstow.v1.PageStatus.
enum class PageOutcome : uint8_t {
  kHit,
  kMiss,
  kCorrupt,
  kExpired,
  kUnavailable,
  kNotCompatible,
  kStored,
  kAlreadyThere,
  kConflict,
  kRefused
};
absl::string_view OutcomeName(PageOutcome outcome);  // "HIT"

enum class AckLevel : uint8_t { kDefault = 0, kMemory = 1, kProcess = 2, kDurable = 3 };

// The attention that the tokens of a page received, under a name that policies know
// (docs/CODECS.md). PageColumnsOf (page_columns.h) makes columns of floats.
struct PageColumn {
  std::string name;
  uint64_t queries = 0;         // that the scores sum over, at least 1
  uint64_t context = 0;         // tokens that each query could see; 0 = up to the page's end
  std::vector<uint8_t> scores;  // F16 [layers, tokens, kv_heads]
};

struct PagePut {
  std::string key;
  std::span<const uint8_t> raw;  // in the layout of kernels/page/page.h
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  AckLevel ack = AckLevel::kDefault;
  std::vector<PageColumn> columns = {};  // at most 8; the server refuses a page with a wrong one
  // `raw` is in the memory of the client's GPU (ClientOptions::gpu). It is complete once the event
  // `ready` (a cudaEvent_t; null: already) has passed. Both must not change until the callback.
  bool on_gpu = false;
  void* ready = nullptr;
};

struct PutResult {
  PageOutcome outcome = PageOutcome::kUnavailable;
  std::string message;  // why the page was refused, or why the call failed
  uint64_t stored_bytes = 0;
  std::string recipe;
  bool fell_back = false;
  AckLevel ack = AckLevel::kDefault;
};

struct PageGet {
  std::string key;
  // Has the size of the page's layers. A HIT fills it; any other outcome leaves it undefined.
  std::span<uint8_t> out;
  uint32_t max_levels = 0;  // 0 = all
  // A page with fewer levels, or with a larger estimated error, is a miss.
  uint32_t min_levels = 0;
  double max_error = std::numeric_limits<double>::infinity();
  uint32_t first_layer = 0;
  uint32_t layer_count = 0;  // 0 = all from first_layer
  uint32_t first_token = 0;
  // 0 = all from first_token. A range that the page lacks is kNotCompatible.
  uint32_t token_count = 0;
  // This asks for another part of a page, or for more of its levels, just after a first request:
  // both are one use of the page.
  bool again = false;
  // `out` is in the memory of the client's GPU. The client may write it once `ready` has passed, as
  // in PagePut. It is whole when the callback runs, for any stream that then reads it.
  bool on_gpu = false;
  void* ready = nullptr;
};

struct GetResult {
  PageOutcome outcome = PageOutcome::kUnavailable;
  std::string message;
  // A page that is shorter than `out` fills its front: PageBytes(spec, tokens) bytes.
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  uint64_t bytes = 0;
  std::string tier, recipe;
  std::string raw_digest;  // 16 bytes, XXH3-128 of the raw page as it was put
  bool exact = false;
  uint32_t levels = 0, levels_stored = 0;
  double estimated_error = 0;  // squared, relative to the energy of K and V
  uint64_t stored_bytes = 0;
  // The tokens that a page has when it lacks some: [layers, tokens, kv_heads] of the requested
  // range, 1 = kept. K and V of the others are zeros that attention must mask. Empty = all kept.
  std::vector<uint8_t> keep;
  double kept_share = 1;
};

// The callbacks of client.h: the results of a call, one for each page, in order; and what a Get has
// so far, which lasts as long as the callback.
using PutDone = std::function<void(std::vector<PutResult>)>;
using GetDone = std::function<void(std::vector<GetResult>)>;
using LayersDone = std::function<void(LayerRange layers, std::span<const GetResult> so_far)>;
using BaseDone = std::function<void(std::span<const GetResult> base)>;

// Attention on a stored page, and the outcome of the report.
struct PageReport {
  std::string key;
  PageColumn column;
};
struct ReportResult {
  PageOutcome outcome = PageOutcome::kUnavailable;  // kHit (taken), kMiss (no such page), kRefused
  std::string message = {};                         // when it was not taken
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAGES_H_
