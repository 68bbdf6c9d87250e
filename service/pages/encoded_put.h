// A page that comes encoded: is it what the space's codec could have made of the page that it says
// it is?
//
// Its claims are checked as those of a stored page are (header, digests, geometry), and against the
// space and the put: key, tokens, positions, recipe, all of its levels. A page that says that it is
// exact is decoded and compared with its raw digest: only what was checked is exact. What a lossy
// body decodes to cannot be checked without what it was made of. Its raw digest stays its writer's
// word: it is stored under a content digest of its own, so that nobody's raw page is taken for it.
// Decoders take hostile bodies, and a body that does not decode is a miss at the first Get. Free
// functions; thread-safe.
#ifndef KVSTOW_SERVICE_PAGES_ENCODED_PUT_H_
#define KVSTOW_SERVICE_PAGES_ENCODED_PUT_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/page/encoded_page.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/spaces/spaces.h"

namespace kvstow {

// Whether the space takes encoded pages at all; FAILED_PRECONDITION says why not.
absl::Status CheckTakesEncoded(const Space& space);

// The page in `payload`, without the columns. INVALID_ARGUMENT and DATA_LOSS name what is wrong.
absl::StatusOr<EncodedPage> CheckedEncodedPage(const Space& space, const v1::PutPage& page,
                                               std::span<const uint8_t> payload);

// What tells a page that rests on its writer's word from others: half a SHA-256 of the raw digest
// that it claims and the digests of its segments (docs/FORMAT.md, "Encoded pages that workers
// send"). Nobody can choose a claim that makes it an honest page's raw digest.
Digest128 ContentDigest(const PageHeader& header);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_ENCODED_PUT_H_
