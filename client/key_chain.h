// Keys of pages from token ids: a chain of SHA-256, so that equal keys mean equal prefixes.
//
//   key[i] = SHA-256( "kvstow key v1" | parent | u32 count | u32 token ids ... | u32 length, extra
//   ... )
//
// where parent is key[i-1], or 32 zero bytes for the first page; all integers are little-endian.
// Extras name what token ids do not: the digests of the images whose placeholders a page holds, an
// adapter, a cache salt. They enter their own page's key and, by the chain, the keys of all later
// pages. The length of every field precedes it. docs/FORMAT.md, "Keys", is the specification.
//
// Engines with keys of their own (vLLM, SGLang, LMCache) pass those instead. Free functions;
// thread-safe.
#ifndef KVSTOW_CLIENT_KEY_CHAIN_H_
#define KVSTOW_CLIENT_KEY_CHAIN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvstow {

// Returns 32 bytes. `parent` is "" or the 32-byte key of the page before.
std::string PageKey(absl::string_view parent, std::span<const int32_t> tokens,
                    std::span<const std::string> extras = {});

// Returns the keys of the consecutive pages of `page_tokens` tokens; a last, shorter page has a key
// too. `extras` belong to the first page. `page_extras` belong to each page, in order; the first
// page's follow `extras`. Pages beyond its end have none.
std::vector<std::string> PageKeys(std::span<const std::string> extras,
                                  std::span<const int32_t> tokens, uint32_t page_tokens,
                                  std::span<const std::vector<std::string>> page_extras = {});

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_KEY_CHAIN_H_
