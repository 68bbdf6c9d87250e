// Encoded pages as a worker sends them.
#ifndef KVSTOW_TESTS_SERVICE_ENCODED_PAGES_H_
#define KVSTOW_TESTS_SERVICE_ENCODED_PAGES_H_

#include <optional>
#include <string>
#include <vector>

#include "kernels/page/encoded_page.h"
#include "kernels/page/encoded_payload.h"

namespace kvstow::testing {

// The payload of a page with all of its segments.
inline std::string PayloadOf(const EncodedPage& page) {
  const std::vector<std::optional<SharedBytes>> bodies(page.segments.begin(), page.segments.end());
  std::string out;
  for (const SharedBytes& part : EncodedPayload(page.header_bytes, bodies)) {
    out.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return out;
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_ENCODED_PAGES_H_
