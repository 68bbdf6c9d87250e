// The page of a real model that the tree carries: 256 tokens of SmolLM2-135M on prose.
#ifndef KVSTOW_TESTS_KERNELS_FIXTURE_H_
#define KVSTOW_TESTS_KERNELS_FIXTURE_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/pages.h"
#include "tests/paths.h"

namespace kvstow::testing {

inline constexpr uint32_t kFixtureTokens = 256;

inline KvSpec FixtureSpec() {
  KvSpec spec = SpecOf(DType::kF16, 30, 3, 64, 64, kFixtureTokens);
  spec.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 100000};
  return spec;
}

// The raw page; empty when the file is not as expected. It reads only the offsets of the tensors
// k.L and v.L from the safetensors header.
inline std::vector<uint8_t> FixturePage() {
  std::ifstream in(TestsPath("data/smollm2-wiki-256.safetensors"), std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) return {};
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const std::string header = file.substr(sizeof(header_bytes), header_bytes);
  const size_t slab_bytes = SlabValues(FixtureSpec(), Part::kK, kFixtureTokens) * 2;
  std::vector<uint8_t> raw;
  for (uint32_t slab = 0; slab < 2 * FixtureSpec().layers; ++slab) {
    const std::string name = absl::StrCat("\"", slab % 2 == 0 ? "k." : "v.", slab / 2, "\"");
    const std::string key = "\"data_offsets\":[";
    const size_t entry = header.find(name);
    const size_t at = entry == std::string::npos ? entry : header.find(key, entry);
    if (at == std::string::npos) return {};
    const uint64_t offset = std::strtoull(header.c_str() + at + key.size(), nullptr, 10);
    const size_t begin = sizeof(header_bytes) + header_bytes + offset;
    if (begin > file.size() || file.size() - begin < slab_bytes) return {};
    raw.insert(raw.end(), file.begin() + static_cast<int64_t>(begin),
               file.begin() + static_cast<int64_t>(begin + slab_bytes));
  }
  return raw;
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_FIXTURE_H_
