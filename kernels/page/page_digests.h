// Digests of a raw page that comes piece by piece. A digester reads each piece while it is in a
// core's cache. It makes the digest of the page and the digests of its runs of layers. A codec that
// keeps the very bytes would otherwise read the runs again (PageToEncode). A value; not
// thread-safe.
#ifndef KVSTOW_KERNELS_PAGE_PAGE_DIGESTS_H_
#define KVSTOW_KERNELS_PAGE_PAGE_DIGESTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"

namespace kvstow {

struct PageDigests {
  Digest128 page;              // Xxh3_128
  std::vector<uint64_t> runs;  // Xxh3 of each, in order; empty: the codec has no use for them
};

class PageDigester {
 public:
  // `run_bytes` is ExactRunBytes (codec.h); 0 = no runs.
  explicit PageDigester(size_t run_bytes) : run_bytes_(run_bytes), left_(run_bytes) {}

  void Update(std::span<const uint8_t> piece);
  // Returns the digests of the bytes so far. The last run may be shorter than the others.
  PageDigests Finish();

 private:
  void EndRun();

  size_t run_bytes_;
  size_t left_;  // bytes left of the run that has begun
  Xxh3Stream page_, run_;
  std::vector<uint64_t> runs_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_PAGE_DIGESTS_H_
