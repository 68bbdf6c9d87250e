// Checks of a page that comes encoded: could the space's codec have made it from the page that it
// claims to be?
//
// The checks compare the page's claims as those of a stored page (header, digests, geometry), and
// against the space and the put: key, tokens, positions, recipe, all of its levels. They decode a
// page that claims to be exact, and compare it with its raw digest: only checked content is exact.
// The content of a lossy body cannot be checked without its source, so its raw digest stays its
// writer's word. The store keeps such a page under a content digest of its own, so it never passes
// for another's raw page. Decoders take hostile bodies. A body that does not decode is a miss at
// the first Get. Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_PAGES_ENCODED_PUT_H_
#define KVSTOW_SERVICE_PAGES_ENCODED_PUT_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/page/encoded_page.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/spaces/spaces.h"

namespace kvstow {

// Checks that the space takes encoded pages at all. FAILED_PRECONDITION says why not.
absl::Status CheckTakesEncoded(const Space& space);

// Returns the page in `payload`, without the columns. INVALID_ARGUMENT and DATA_LOSS name what is
// wrong.
absl::StatusOr<EncodedPage> CheckedEncodedPage(const Space& space, const v1::PutPage& page,
                                               std::span<const uint8_t> payload);

// Returns the digest that tells a page on its writer's word from others: half a SHA-256 of its
// claimed raw digest and the digests of its segments (docs/FORMAT.md, "Encoded pages that workers
// send"). Nobody can choose a claim that makes it an honest page's raw digest.
Digest128 ContentDigest(const PageHeader& header);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_ENCODED_PUT_H_
