// What is sent of a page that is put: what is said of it, and the bytes.
//
// Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PUT_PAYLOAD_H_
#define KVSTOW_CLIENT_PUT_PAYLOAD_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "client/client.h"
#include "client/space_payloads.h"
#include "kernels/codec/decode_page.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// Why a page cannot be sent; "" = it can.
absl::string_view CannotPut(const PagePut& page);
PutResult RefusedPut(absl::string_view why);

struct PutPayload {
  v1::PutPage begin;
  std::vector<SharedBytes> parts;  // of the page and of its columns, begin.payload_bytes in all
};

// `digest` is that of the raw page, where it is sent ahead; an encoded one has it. What the parts
// refer to is the page's own memory, which `owner` keeps. `coder`, if any, codes in the place of
// the space's codec. Errors are of encoding: the page is refused.
absl::StatusOr<PutPayload> MakePutPayload(const PagePut& page, const SpacePayload& space,
                                          bool encoded, const std::optional<Digest128>& digest,
                                          std::shared_ptr<const void> owner,
                                          const PageCoder& coder = nullptr);

uint64_t TotalBytes(std::span<const SharedBytes> parts);

// The key of the page before page `i` of a batch in its prompt, whose pages come in its order; "" =
// not known.
std::string ParentKeyOf(std::span<const PagePut> pages, size_t i);

// Whether these pages go encoded now; asks the space's choice.
bool GoEncoded(SpacePayload& space, std::span<const PagePut* const> pages);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PUT_PAYLOAD_H_
