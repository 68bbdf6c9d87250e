// Which tokens a model looks at: a guess from their keys, where nothing else is known.
//
// Most tokens get hardly any attention. So queries point away from what the keys of a head have in
// common, and a key that has less of it draws more attention. KeyDiff (arXiv 2504.15364) tells such
// keys by their cosine. With m the mean of a head's K before RoPE over some tokens, and s the root
// of the sum of its channels' variances, a layer of H heads foretells for each token:
//
//   log of its sensitivity = -kPull / H * sum over heads of (k - m) . m / (|m| s)
//
// Measured on SmolLM2-135M: the correlation with the logarithms that gradients give is .36 in a
// layer and .38 over ten. Slopes that a worker measures have .60 and .51. kPull is the regression's
// (docs/decisions/0100-tokens-from-keys.md).
//
// A free function; thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_KEY_SLOPES_H_
#define KVSTOW_KERNELS_CALIBRATION_KEY_SLOPES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvstow {

// `means` and `variances` are those of the channels of a layer's K, head after head. Returns what
// the logarithm grows by for a difference of 1 in each channel. A head without a mean has zeros.
std::vector<float> KeySlopes(uint32_t heads, std::span<const float> means,
                             std::span<const double> variances);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_KEY_SLOPES_H_
