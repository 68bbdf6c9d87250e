// Text from anywhere as an access file: it is refused, or says what holds together.
#include <cstdlib>

#include "service/access/access_file.h"

using namespace kvstow;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = ParseAccessFile({reinterpret_cast<const char*>(data), size});
  if (!file.ok()) {
    if (!absl::IsInvalidArgument(file.status())) std::abort();
    return 0;
  }
  for (const AccessFile::Identity& identity : file->identities) {
    const Caller& caller = identity.caller;
    if (caller.identity.empty()) std::abort();
    if (caller.tenant.empty() && caller.role != Role::kAdmin) std::abort();
    if (!caller.tenant.empty() && !file->tenants.contains(caller.tenant)) std::abort();
  }
  for (const AccessFile::Share& share : file->shares) {
    if (!file->tenants.contains(share.owner) || share.with.empty()) std::abort();
  }
  return 0;
}
