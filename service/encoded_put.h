// A page that comes encoded: is it what the space's codec could have made of the page that it says
// it is?
//
// Its claims are checked as those of a stored page are (header, digests, geometry), and against the
// space and the put: key, tokens, positions, recipe, all of its levels. Of recipes that keep the
// very bytes, also the raw digest. What a lossy body decodes to cannot be checked without what it
// was made of; decoders take hostile bodies, and a body that does not decode is a miss at the first
// Get. Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_ENCODED_PUT_H_
#define KVSTOW_SERVICE_ENCODED_PUT_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/encoded_page.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/spaces.h"

namespace kvstow {

// Whether the space takes encoded pages at all; FAILED_PRECONDITION says why not.
absl::Status CheckTakesEncoded(const Space& space);

// The page in `payload`, without the columns. INVALID_ARGUMENT and DATA_LOSS name what is wrong.
absl::StatusOr<EncodedPage> CheckedEncodedPage(const Space& space, const v1::PutPage& page,
                                               std::span<const uint8_t> payload);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ENCODED_PUT_H_
