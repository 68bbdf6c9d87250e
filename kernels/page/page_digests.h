// Digests of a raw page that comes piece by piece, made while each piece is in a core's cache: of
// the page, and of its runs of layers, which a codec that keeps the very bytes would else read
// again (PageToEncode). A value; not thread-safe.
#ifndef KVSTOW_KERNELS_PAGE_PAGE_DIGESTS_H_
#define KVSTOW_KERNELS_PAGE_PAGE_DIGESTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"

namespace kvstow {

struct PageDigests {
  Digest128 page;              // Xxh3_128
  std::vector<uint64_t> runs;  // Xxh3 of each, in order; none: the codec has no use for them
};

class PageDigester {
 public:
  // `run_bytes`: KeptRunBytes (codec.h).
  explicit PageDigester(size_t run_bytes) : run_bytes_(run_bytes), left_(run_bytes) {}

  void Update(std::span<const uint8_t> piece);
  // Of what came so far; the last run may be shorter than the others.
  PageDigests Finish();

 private:
  void EndRun();

  size_t run_bytes_;
  size_t left_;  // of the run that has begun
  Xxh3Stream page_, run_;
  std::vector<uint64_t> runs_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_PAGE_DIGESTS_H_
