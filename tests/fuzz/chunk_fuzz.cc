// Bulk messages in any slices: reading one never crashes, takes what generated code takes, and
// finds the same payload.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "proto/wire/chunk.h"

namespace {

// As `data`, cut where its first bytes say.
grpc::ByteBuffer Cut(const uint8_t* data, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t cuts = size > 0 ? data[0] % 8 : 0; cuts > 0 && size > 0; --cuts) {
    const size_t here = std::min<size_t>(size, data[0]);
    slices.emplace_back(data, here);
    data += here;
    size -= here;
  }
  slices.emplace_back(data, size);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  v1::PutRequest request, whole;
  const auto payload = ReadChunk(Cut(data, size), request);
  v1::GetResponse response;
  (void)ReadChunk(Cut(data, size), response).ok();
  if (!payload.ok()) return 0;
  std::string bytes;
  for (const grpc::Slice& s : payload->slices) {
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  if (bytes.size() != payload->bytes) std::abort();
  if (!whole.ParseFromArray(data, static_cast<int>(size)) || whole.data() != bytes) std::abort();
  whole.clear_data();
  if (whole.SerializeAsString() != request.SerializeAsString()) std::abort();
  return 0;
}
