// The first tokens of a text, which lie far outside the distribution of all others. The joint codec
// codes them apart, slab after slab as affine(bits=`firstbits`,group=32), K with its rotary
// positions. Much of the attention is theirs. Where K has large means, what 5 bits lose of them is
// most of what a page loses, so the presets have 8.
//
// Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_FIRST_TOKENS_H_
#define KVSTOW_KERNELS_METHODS_FIRST_TOKENS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/page.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

inline constexpr uint32_t kFirstBits = 5;  // where a recipe does not say it

// Makes the quantizer of first tokens, for an op that has the argument `firstbits`.
absl::StatusOr<std::unique_ptr<Quantizer>> MakeFirstQuantizer(const OpArguments& arguments);

class FirstTokens {
 public:
  // Positions below `first` (0..64, kFirstTokens) are coded apart, in `firstbits` bits. Both are
  // arguments of an op.
  static absl::StatusOr<FirstTokens> Make(const OpArguments& arguments, const KvSpec& spec);

  // Returns how many of a run's tokens are first tokens. They lead the run.
  uint32_t Count(const Run& run) const;
  // Returns the bytes that Encode writes for a run.
  size_t Bytes(const Run& run) const;
  // Encodes the run's raw bytes. Returns nothing when a value is NaN, Inf or beyond what fp16
  // scales can hold.
  std::optional<std::string> Encode(const Run& run, std::span<const uint8_t> raw) const;
  // Decodes those of them that are wanted into `raw`, laid out as a page of the wanted layers and
  // tokens. `body` has Bytes(run) bytes. Fails with DATA_LOSS when a scale is not finite.
  absl::Status Decode(const Run& run, const uint8_t* body, const PageRange& wanted,
                      std::span<uint8_t> raw) const;

 private:
  FirstTokens(const KvSpec& spec, uint32_t end, std::unique_ptr<const Quantizer> quantizer)
      : spec_(spec), end_(end), quantizer_(std::move(quantizer)) {}

  // Calls visit(layer within the run, shape of its first tokens) for every slab of a run.
  template <typename Visit>
  void ForEachSlab(const Run& run, const Visit& visit) const;

  KvSpec spec_;
  uint32_t end_;
  std::unique_ptr<const Quantizer> quantizer_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_FIRST_TOKENS_H_
