// What errors of K and V cost a model of which nothing is known: a guess from how K spreads.
//
// Queries are about as large as keys. Where the keys of a head spread little, its scores hardly
// differ: it looks at all tokens alike, and one error is lost among them. Where they spread widely,
// it looks at few tokens, and errors of these reach the model. So, with v_c the variance of channel
// c of a head's K before RoPE:
//
//   s = sum of v_c^2 / sum of v_c       u = s / (mean of s over all heads), within 1/16 and 16
//   cost of an error e of V:  u   * |e|^2 / (variance of V of the layer, a mean over its heads)
//   cost of an error e of K:  u^2 * (sum of w_c e_c^2) / (variance of the head's K)
//   w_c = v_c^1/2 / (mean of v_c^1/2 over the head's channels)
//
// A variance of K or V is a sum over channels. The mean of these costs over all heads, times a
// constant, is the KL divergence of the next token's distribution, in nats.
//
// Keys may pass a norm (QK-norm). Its weights then make the spread of channels, and other costs
// hold, with a constant for K and one for V:
//
//   cost of an error e of V:      |e|^2 / (variance of V of the layer, a mean over its heads)
//   cost of an error e of K:  u * |e|^2 / (variance of the head's K)
//
// Measured on SmolLM2-135M: where gradients say what errors cost, both laws hold over its 90 heads
// within a factor of 1.6 (docs/decisions/0099-costs-from-keys.md). The constant is that model's.
// Those for normed keys are of Gemma-3-270M (docs/decisions/0104-first-tokens-in-8-bits.md).
// Latents (spaces without V) are no keys: all their layers and channels cost the same.
//
// Free functions; thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_COST_PRIOR_H_
#define KVSTOW_KERNELS_CALIBRATION_COST_PRIOR_H_

#include <span>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow {

// `variances` is [layers, channels]: of a layer's K before RoPE, head after head, and then of its
// V. Returns what a squared error of 1 in that channel of every token costs, in nats, in the same
// shape. `normed_keys`: ModelStats::normed_keys; it says nothing of latents.
std::vector<double> CostPrior(const KvSpec& spec, std::span<const double> variances,
                              bool normed_keys = false);
// Returns u of each head, [layers, kv_heads].
std::vector<double> HeadsFelt(const KvSpec& spec, std::span<const double> variances);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_COST_PRIOR_H_
