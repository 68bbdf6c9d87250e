// Which tokens of a page stayed, as bytes: the masks of sparse pages and of the replies that carry
// them (docs/FORMAT.md, "Bodies of sparse pages").
//
// Free functions; thread-safe. Reading checks every length before it allocates: DATA_LOSS says what
// does not fit.
#ifndef KVSTOW_KERNELS_METHODS_KEPT_TOKENS_H_
#define KVSTOW_KERNELS_METHODS_KEPT_TOKENS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "kernels/importance/budget.h"
#include "kernels/page/page.h"

namespace kvstow {

// The kept tokens of one layer and KV head, ascending.
std::vector<uint32_t> KeptOf(const Selection& kept, uint32_t layer, uint32_t head);

// A count and a mask for each layer of the range and each head: a list of positions or a bit for
// each token, whichever is shorter.
void WriteKept(const Selection& kept, LayerRange layers, ByteWriter& out);
// How many bytes that is of all layers of `kept`.
size_t KeptBytes(const Selection& kept);

// What WriteKept wrote of so many layers, tokens and heads, from the beginning of `bytes`; what
// follows is left alone.
absl::StatusOr<Selection> ReadKept(std::span<const uint8_t> bytes, uint32_t layers, uint32_t tokens,
                                   uint32_t heads);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_KEPT_TOKENS_H_
