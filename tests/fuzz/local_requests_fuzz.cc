// Messages of a local session from anywhere: a session's memory, its slots and the store survive
// them, and every slot that is lent is within the memory.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/service/bare_server.h"

using namespace kvstow;

// The input: messages, each behind its length in one byte.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static testing::BareServer parts;
  LocalParts local = parts.Local();
  std::vector<uint8_t> memory(16 * 4096);
  static const auto gpu_memory = parts.gpu().Share(16 * 4096, "the fuzzer's GPU").value();
  LocalRequests requests(local, std::make_shared<const Caller>(), memory, gpu_memory);
  while (size > 0) {
    const size_t bytes = std::min<size_t>(data[0], size - 1);
    v1::LocalRequest request;
    if (!request.ParseFromArray(data + 1, static_cast<int>(bytes))) return 0;
    // No fuzzer guesses a fingerprint.
    if (request.has_get()) testing::NameSpace(request.get().space(), *request.mutable_get());
    if (request.has_put()) testing::NameSpace(request.put().space(), *request.mutable_put());
    const absl::Status status = requests.Handle(request, [&](const v1::LocalReply& reply) {
      const bool lent = reply.has_slot() && reply.slot().has_slot();
      if (lent && (reply.slot().offset() > memory.size() ||
                   reply.slot().bytes() > memory.size() - reply.slot().offset())) {
        std::abort();
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return 0;
    data += 1 + bytes;
    size -= 1 + bytes;
  }
  return 0;
}
