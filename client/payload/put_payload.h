// The message and the bytes that a put sends for a page.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PAYLOAD_PUT_PAYLOAD_H_
#define KVSTOW_CLIENT_PAYLOAD_PUT_PAYLOAD_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "client/pages.h"
#include "client/payload/space_payloads.h"
#include "kernels/codec/decode_page.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// Says why a page cannot be sent, wherever its bytes are; "" = it can.
absl::string_view CannotPut(const PagePut& page);

struct PutPayload {
  v1::PutPage begin;
  std::vector<SharedBytes> parts;  // the page and its columns, begin.payload_bytes in all
};

// Makes the payload of a page. `digest` is the raw page's, where it is sent ahead; without it, this
// makes the digest of an encoded page. The parts refer to the page's own memory, which `owner`
// keeps. `coder`, if any, codes in place of the space's codec. Fails when encoding fails: the page
// is then refused.
absl::StatusOr<PutPayload> MakePutPayload(const PagePut& page, const SpacePayload& space,
                                          bool encoded, const std::optional<Digest128>& digest,
                                          std::shared_ptr<const void> owner,
                                          const PageCoder& coder = nullptr);

uint64_t TotalBytes(std::span<const SharedBytes> parts);

// Returns the key of the page that precedes page `i` in its prompt; "" = not known. The pages of a
// batch come in the order of the prompt.
std::string ParentKeyOf(std::span<const PagePut> pages, size_t i);

// Returns whether pages `todo` of a batch go encoded now. Asks the space's choice.
bool GoEncoded(SpacePayload& space, std::span<const PagePut> pages, std::span<const size_t> todo);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_PUT_PAYLOAD_H_
