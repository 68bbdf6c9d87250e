#include "kernels/transform/rope.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

namespace kvstow {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;
constexpr uint32_t kAnew = 64;

// The share of each pair that keeps its frequency (1) or takes the interpolated one (0).
double YarnShare(const RopeSpec& rope, uint32_t dims, size_t pair) {
  const auto dimension_of = [&](double turns) {
    return dims * std::log(rope.original_context / (turns * kTwoPi)) / (2 * std::log(rope.theta));
  };
  const double low = std::max(std::floor(dimension_of(rope.high_freq_factor)), 0.0);
  double high = std::min(std::ceil(dimension_of(rope.low_freq_factor)), dims - 1.0);
  if (low == high) high += 0.001;
  return 1 - std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
}

double Llama3Frequency(const RopeSpec& rope, double frequency) {
  const double turns = rope.original_context * frequency / kTwoPi;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

double ScaledFrequency(const RopeSpec& rope, uint32_t dims, size_t pair) {
  const double exponent = -2.0 * static_cast<double>(pair) / dims;
  const double plain = std::pow(rope.theta, exponent);
  switch (rope.scaling) {
    case RopeSpec::Scaling::kNone:
    case RopeSpec::Scaling::kLongRope:  // its factors are not in a page's header
      return plain;
    case RopeSpec::Scaling::kLinear:
      return plain / rope.factor;
    case RopeSpec::Scaling::kNtk:
      if (dims <= 2) return plain;  // one pair, which does not depend on theta
      return std::pow(rope.theta * std::pow(rope.factor, dims / (dims - 2.0)), exponent);
    case RopeSpec::Scaling::kYarn: {
      const double share = YarnShare(rope, dims, pair);
      return plain * share + plain / rope.factor * (1 - share);
    }
    case RopeSpec::Scaling::kLlama3:
      return Llama3Frequency(rope, plain);
  }
  return plain;
}

// Written out: std::complex's product looks for NaN.
std::complex<double> Product(std::complex<double> a, std::complex<double> b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

// One head of one token. `step` is the distance of the two channels of a pair, `next` of two pairs.
void TurnVector(const float* cos, const float* sin, float scale, float sign, size_t pairs,
                size_t step, size_t next, float* x) {
  for (size_t i = 0; i < pairs; ++i) {
    float& first = x[i * next];
    float& second = x[i * next + step];
    const float c = cos[i] * scale, s = sin[i] * sign * scale;
    const float a = first, b = second;
    first = a * c - b * s;
    second = b * c + a * s;
  }
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeSpec& rope, uint32_t head_dim) {
  std::vector<double> out;
  if (rope.layout == RopeSpec::Layout::kNone) return out;
  const uint32_t dims = rope.rotary_dims == 0 ? head_dim : rope.rotary_dims;
  for (size_t i = 0; i < dims / 2; ++i) {
    const double frequency = ScaledFrequency(rope, dims, i);
    out.push_back(std::isfinite(frequency) ? frequency : 0);
  }
  return out;
}

double RopeMagnitude(const RopeSpec& rope) {
  const bool grows = rope.scaling == RopeSpec::Scaling::kYarn && rope.factor > 1;
  return grows ? 0.1 * std::log(rope.factor) + 1 : 1;
}

RopeRotation::RopeRotation(const RopeSpec& rope, uint32_t head_dim, uint64_t first_position,
                           uint32_t tokens, uint32_t before)
    : interleaved_(rope.layout == RopeSpec::Layout::kInterleaved),
      head_dim_(head_dim),
      tokens_(tokens) {
  if (!rope.k_after_rope) return;
  const std::vector<double> frequencies = RopeFrequencies(rope, head_dim);
  pairs_ = frequencies.size();
  magnitude_ = static_cast<float>(RopeMagnitude(rope));
  cos_.resize(tokens * pairs_);
  sin_.resize(tokens * pairs_);
  for (size_t i = 0; i < pairs_; ++i) {
    // A token's angle from the one before by a complex product in F64; every 64th of the page anew,
    // so that rounding does not add up.
    const std::complex<double> step = std::polar(1.0, frequencies[i]);
    const uint32_t since = before % kAnew;
    std::complex<double> turn;
    for (uint32_t t = 0; t < since + tokens; ++t) {
      const auto position = static_cast<double>(first_position - since + t);
      turn = t % kAnew == 0 ? std::polar(1.0, position * frequencies[i]) : Product(turn, step);
      if (t < since) continue;
      cos_[(t - since) * pairs_ + i] = static_cast<float>(turn.real());
      sin_[(t - since) * pairs_ + i] = static_cast<float>(turn.imag());
    }
  }
}

void RopeRotation::Turn(uint32_t first, uint32_t count, uint32_t heads, float scale, float sign,
                        float* values) const {
  if (pairs_ == 0) return;
  for (uint32_t t = 0; t < count; ++t) {
    const float* cos = cos_.data() + (first + t) * pairs_;
    const float* sin = sin_.data() + (first + t) * pairs_;
    for (uint32_t h = 0; h < heads; ++h, values += head_dim_) {
      if (interleaved_) {
        TurnVector(cos, sin, scale, sign, pairs_, 1, 2, values);
      } else {
        TurnVector(cos, sin, scale, sign, pairs_, pairs_, 1, values);
      }
    }
  }
}

void RopeRotation::Undo(uint32_t first, uint32_t count, uint32_t heads, float* values) const {
  Turn(first, count, heads, 1 / magnitude_, -1, values);
}

void RopeRotation::Redo(uint32_t first, uint32_t count, uint32_t heads, float* values) const {
  Turn(first, count, heads, magnitude_, 1, values);
}

void RopeRotation::Undo(uint32_t heads, float* values) const { Undo(0, tokens_, heads, values); }

void RopeRotation::Redo(uint32_t heads, float* values) const { Redo(0, tokens_, heads, values); }

LayerRotations::LayerRotations(const KvSpec& spec, LayerRange layers, uint64_t first_position,
                               uint32_t tokens, uint32_t before)
    : others_(spec.other_rope.layers) {
  const auto is_other = [&](uint32_t layer) { return std::ranges::binary_search(others_, layer); };
  for (uint32_t i = 0; i < layers.count; ++i) {
    const bool other = is_other(layers.first + i);
    std::optional<RopeRotation>& rotation = other ? other_ : usual_;
    if (rotation.has_value()) continue;
    rotation.emplace(other ? spec.other_rope.rope : spec.rope, spec.head_dim_k, first_position,
                     tokens, before);
  }
}

}  // namespace kvstow
