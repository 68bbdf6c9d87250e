// How principal components are cut into groups and how many bits each group gets (KVTC, arXiv
// 2511.01815). A group of 1, 16, 64, 256 or 1,024 consecutive components is dropped, or kept as
// integers of 2 or 4 bits or as 8-bit floats. A kept group has a shift and a scale (fp16 each) for
// every token.
//
//   int b: m = fp16(min), s = fp16((max - m) / (2^b - 1)), q = round((c - m) / s), c' = q s + m
//   fp8:   m = fp16((min + max) / 2), a = fp16(max |c - m|), q = E4M3(448 (c - m) / a),
//          c' = a / 448 E4M3^-1(q) + m
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_COMPONENT_PLAN_H_
#define KVSTOW_KERNELS_METHODS_COMPONENT_PLAN_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvstow {

// Persisted: do not change values.
enum class ComponentType : uint8_t { kDropped = 0, kInt2 = 1, kInt4 = 2, kFp8 = 3 };
inline constexpr uint32_t kComponentTypes = 4;
inline constexpr std::array<uint32_t, 5> kGroupSizes = {1, 16, 64, 256, 1024};

struct ComponentGroup {
  uint16_t size = 1;
  ComponentType type = ComponentType::kDropped;
  bool operator==(const ComponentGroup&) const = default;
};
// Groups of the leading components, in order. Components behind the last group are dropped.
using ComponentPlan = std::vector<ComponentGroup>;

size_t PlannedComponents(const ComponentPlan& plan);
// Returns the bits a token, shifts and scales included.
uint64_t PlannedBits(const ComponentPlan& plan);

// Returns the plan that takes at most `budget` bits a token with the least squared error over the
// sample `c` [tokens, rank]. It is the least that a Lagrange multiplier finds: a point on the lower
// convex hull.
ComponentPlan MakeComponentPlan(std::span<const float> c, size_t rank, uint64_t budget);

// Appends the bytes of `tokens` rows at `c` [tokens, rank]: for each group its shifts, its scales
// (fp16, one a token each) and its codes, token after token, bit-packed. Returns false when a shift
// or a scale is beyond fp16.
bool EncodeComponents(const ComponentPlan& plan, const float* c, size_t tokens, size_t rank,
                      std::string& out);
size_t EncodedComponentBytes(const ComponentPlan& plan, size_t tokens);
// `bytes` are EncodedComponentBytes. Writes `c` [tokens, rank], 0 for dropped components. Returns
// false when a shift, a scale or a code is not finite.
bool DecodeComponents(const ComponentPlan& plan, const uint8_t* bytes, size_t tokens, size_t rank,
                      float* c);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_COMPONENT_PLAN_H_
