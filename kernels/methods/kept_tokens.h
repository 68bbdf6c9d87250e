// The kept tokens of a page as bytes: the masks of sparse pages and of the replies that carry them
// (docs/FORMAT.md, "Bodies of sparse pages").
//
// Free functions; thread-safe. Reading checks every length before it allocates. It fails with
// DATA_LOSS, which says what does not fit.
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

// Returns the kept tokens of one layer and KV head, ascending.
std::vector<uint32_t> KeptOf(const Selection& kept, uint32_t layer, uint32_t head);

// Writes a count for each layer of the range and each head, then a mask for each: a list of
// positions or a bit for each token, whichever is shorter.
void WriteKept(const Selection& kept, LayerRange layers, ByteWriter& out);
// Returns the bytes that WriteKept writes for all layers of `kept`.
size_t KeptBytes(const Selection& kept);

// Reads what WriteKept wrote of so many layers, tokens and heads, from the beginning of `bytes`.
// Leaves the bytes behind it alone.
absl::StatusOr<Selection> ReadKept(std::span<const uint8_t> bytes, uint32_t layers, uint32_t tokens,
                                   uint32_t heads);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_KEPT_TOKENS_H_
