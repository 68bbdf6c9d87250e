#include "kernels/importance/query_scores.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <complex>
#include <memory>
#include <span>
#include <vector>

#include "kernels/importance/vector_sums.h"
#include "kernels/transform/dense_product.h"
#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

using Complex = std::complex<double>;

constexpr uint32_t kSpots = 24;  // positions at which the rotation of future queries is averaged

size_t HeadIndex(const LayerView& layer, const QueryStatistics& queries, uint32_t head) {
  return size_t{layer.layer} * queries.heads + head;
}

// Keys of a page with RoPE or without, whatever it stores.
class TurnedKeys {
 public:
  TurnedKeys(const PageToScore& page, RopeSpec rope, bool turned)
      : redo_(turned),
        rotation_(Needed(rope, turned), page.spec.head_dim_k, page.first_position, page.tokens) {}

  // The layer's, as it has them; `scratch` may hold them.
  LayerView Of(const LayerView& layer, std::vector<float>& scratch) const {
    if (rotation_.identity()) return layer;
    scratch.assign(layer.k, layer.k + size_t{layer.tokens} * layer.heads * layer.dim_k);
    redo_ ? rotation_.Redo(layer.heads, scratch.data())
          : rotation_.Undo(layer.heads, scratch.data());
    LayerView out = layer;
    out.k = scratch.data();
    return out;
  }

 private:
  static RopeSpec Needed(RopeSpec rope, bool turned) {
    rope.k_after_rope = rope.k_after_rope != turned;  // a rotation of K without is no rotation
    return rope;
  }

  const bool redo_;
  const RopeRotation rotation_;
};

// Channels as pairs that RoPE turns together, those that it leaves alone paired as they come: first
// channels, then second channels. kNone where the last has no partner.
struct ChannelPairs {
  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> channels;
  std::vector<double> frequencies;  // of each pair, 0 = not turned
  size_t turned = 0;                // leading pairs
  double magnitude = 1;             // of those

  ChannelPairs(const RopeSpec& rope, uint32_t dim) : magnitude(RopeMagnitude(rope)) {
    frequencies = RopeFrequencies(rope, dim);
    turned = frequencies.size();
    frequencies.resize((dim + 1) / 2);
    channels.resize(2 * pairs(), kNone);
    const bool interleaved = rope.layout == RopeSpec::Layout::kInterleaved;
    for (uint32_t f = 0; f < pairs(); ++f) {
      const bool half = f < turned && !interleaved;
      const auto a = half ? f : 2 * f;
      const auto b = half ? static_cast<uint32_t>(f + turned) : 2 * f + 1;
      channels[f] = a;
      if (b < dim) channels[f + pairs()] = b;
    }
  }
  size_t pairs() const { return frequencies.size(); }
  size_t width() const { return channels.size(); }
  void Gather(const float* x, float* out) const {
    for (size_t i = 0; i < width(); ++i) out[i] = channels[i] == kNone ? 0 : x[channels[i]];
  }
};

// Means over future positions of the turn of each pair, and of products of two pairs' turns.
struct FutureTurns {
  std::vector<Complex> turn;
  // [pairs, pairs]: of the first times the second's conjugate, and times the second.
  std::vector<float> apart_re, apart_im, joint_re, joint_im;

  FutureTurns(const ChannelPairs& pairs, uint64_t end, uint32_t ahead) : turn(pairs.pairs()) {
    const size_t n = pairs.pairs();
    std::vector<Complex> at(n), apart(n * n), joint(n * n);
    for (uint32_t spot = 0; spot < kSpots; ++spot) {
      const auto position = static_cast<double>(end + uint64_t{ahead} * spot / (kSpots - 1));
      for (size_t i = 0; i < n; ++i) {
        at[i] =
            std::polar(i < pairs.turned ? pairs.magnitude : 1.0, pairs.frequencies[i] * position);
        turn[i] += at[i] / double{kSpots};
      }
      for (size_t i = 0; i < n; ++i) {
        const double c = at[i].real(), s = at[i].imag();
        for (size_t j = 0; j < n; ++j) {
          const double cc = c * at[j].real(), ss = s * at[j].imag();
          const double sc = s * at[j].real(), cs = c * at[j].imag();
          apart[i * n + j] += Complex(cc + ss, sc - cs);
          joint[i * n + j] += Complex(cc - ss, sc + cs);
        }
      }
    }
    for (size_t i = 0; i < n * n; ++i) {
      apart_re.push_back(static_cast<float>(apart[i].real() / kSpots));
      apart_im.push_back(static_cast<float>(apart[i].imag() / kSpots));
      joint_re.push_back(static_cast<float>(joint[i].real() / kSpots));
      joint_im.push_back(static_cast<float>(joint[i].imag() / kSpots));
    }
  }
};

// x becomes the mean over future positions of R x.
void TurnMean(const FutureTurns& turns, std::span<float> x) {
  const size_t n = turns.turn.size();
  for (size_t i = 0; i < n; ++i) {
    const Complex y = Complex(x[i], x[n + i]) * turns.turn[i];
    x[i] = static_cast<float>(y.real()), x[n + i] = static_cast<float>(y.imag());
  }
}

// Rows i and n + i of the mean over future positions of R C R^T: with z = x_i + i x_(n+i), the mean
// of z_i z_j* turns by the difference of two pairs' angles, that of z_i z_j by their sum.
void TurnRows(const FutureTurns& turns, size_t i, float* first, float* second) {
  const size_t n = turns.turn.size();
  const float *const pr = turns.apart_re.data() + i * n, *const pi = turns.apart_im.data() + i * n;
  const float *const qr = turns.joint_re.data() + i * n, *const qi = turns.joint_im.data() + i * n;
  for (size_t j = 0; j < n; ++j) {
    const float aa = first[j], ab = first[n + j], ba = second[j], bb = second[n + j];
    const float p = aa + bb, p_im = ba - ab, q = aa - bb, q_im = ba + ab;
    const float turned_p = p * pr[j] - p_im * pi[j], turned_p_im = p * pi[j] + p_im * pr[j];
    const float turned_q = q * qr[j] - q_im * qi[j], turned_q_im = q * qi[j] + q_im * qr[j];
    first[j] = 0.5F * (turned_p + turned_q);
    second[n + j] = 0.5F * (turned_p - turned_q);
    second[j] = 0.5F * (turned_p_im + turned_q_im);
    first[n + j] = 0.5F * (turned_q_im - turned_p_im);
  }
}

// Adds softmax(logits) / share to out, `stride` apart. Leaves powers of e in `logits`.
void AddSoftmax(std::span<float> logits, double share, size_t stride, float* out) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float& x : logits) sum += x = std::exp(x - most);
  const auto scale = static_cast<float>(1 / (sum * share));
  for (size_t t = 0; t < logits.size(); ++t) out[t * stride] += logits[t] * scale;
}

// Adds logits / share, taken to mean 0 and deviation 1, to out, `stride` apart.
void AddStandardized(std::span<const float> logits, double share, size_t stride, float* out) {
  const auto count = static_cast<double>(logits.size());
  double mean = 0, squares = 0;
  for (const float x : logits) mean += x / count;
  for (const float x : logits) squares += (x - mean) * (x - mean);
  const double deviation = std::sqrt(squares / count);
  const double scale = deviation > 0 ? 1 / (deviation * share) : 1;
  for (size_t t = 0; t < logits.size(); ++t) {
    out[t * stride] += static_cast<float>((logits[t] - mean) * scale);
  }
}

// Everything of ExpectedAttentionScore that a page's layers of one RoPE have in common.
struct Expected {
  const QueryStatistics& queries;
  const TurnedKeys keys;
  const ChannelPairs pairs;
  const FutureTurns turns;

  Expected(const PageToScore& page, const RopeSpec& rope, uint32_t ahead)
      : queries(*page.queries),
        keys(page, rope, true),
        pairs(rope, page.spec.head_dim_k),
        turns(pairs, page.first_position + page.tokens, ahead) {}

  void Score(const LayerView& stored, float* out) const;
};

void Expected::Score(const LayerView& stored, float* out) const {
  std::vector<float> scratch;
  const LayerView layer = keys.Of(stored, scratch);
  const size_t width = pairs.width(), tokens = layer.tokens;
  const uint32_t group = queries.heads / layer.heads;
  const float root = std::sqrt(static_cast<float>(layer.dim_k));
  std::vector<float> k(tokens * width), turned(tokens * width * group);
  std::vector<float> logits(tokens), spread(tokens), means(width * group);
  std::fill_n(out, tokens * layer.heads, 0.0F);
  for (uint32_t h = 0; h < layer.heads; ++h) {
    for (uint32_t t = 0; t < tokens; ++t) pairs.Gather(layer.Key(t, h), k.data() + t * width);
    std::vector<float> moments(width * width * group);  // [width, group, width]
    for (uint32_t q = 0; q < group; ++q) {
      const size_t index = HeadIndex(layer, queries, h * group + q), dim = queries.dim;
      const std::span<float> mean(means.data() + q * width, width);
      pairs.Gather(queries.mean.data() + index * dim, mean.data());
      TurnMean(turns, mean);
      const auto at = [&](size_t r) { return moments.data() + (r * group + q) * width; };
      for (size_t r = 0; r < width; ++r) {
        if (pairs.channels[r] == ChannelPairs::kNone) continue;
        pairs.Gather(queries.covariance.data() + (index * dim + pairs.channels[r]) * dim, at(r));
      }
      for (size_t i = 0; i < width / 2; ++i) TurnRows(turns, i, at(i), at(i + width / 2));
    }
    PackedMatrix packed(width, width * group);
    for (size_t r = 0; r < width; ++r) {
      packed.SetRow(r, {moments.data() + r * width * group, width * group});
    }
    MultiplyRows(k.data(), tokens, packed, {0, width * group}, turned.data(), width * group);
    const Vectors rows{k.data(), tokens, width, width};
    for (uint32_t q = 0; q < group; ++q) {
      VectorSums::Best().dot_products(rows, means.data() + q * width, 0, logits.data());
      VectorSums::Best().dot_products(rows, turned.data() + q * width, width * group,
                                      spread.data());
      for (size_t t = 0; t < tokens; ++t) {
        logits[t] = logits[t] / root + spread[t] / (2 * static_cast<float>(layer.dim_k));
      }
      AddSoftmax(logits, group, layer.heads, out + h);
    }
  }
}

// Everything of TrigonometricScore that a page's layers of one RoPE have in common.
struct Trigonometric {
  const QueryStatistics& queries;
  const TurnedKeys keys;
  const ChannelPairs pairs;
  std::vector<Complex> turns;  // the mean over offsets 1, 2, 4 .. 65536 after the page

  Trigonometric(const PageToScore& page, const RopeSpec& rope)
      : queries(*page.queries),
        keys(page, rope, true),
        pairs(rope, page.spec.head_dim_k),
        turns(pairs.turned) {
    constexpr int kOffsets = 17;
    for (size_t f = 0; f < turns.size(); ++f) {
      for (int i = 0; i < kOffsets; ++i) {
        const uint64_t position = page.first_position + page.tokens + (uint64_t{1} << i);
        turns[f] +=
            std::polar(1.0 / kOffsets, pairs.frequencies[f] * static_cast<double>(position));
      }
    }
  }

  // Returns the weights of a key's pairs, and then of their lengths, in the logit of a query head.
  std::vector<float> Weights(size_t index) const {
    const size_t n = pairs.pairs(), dim = queries.dim;
    std::vector<float> mean(2 * n), out(3 * n);
    pairs.Gather(queries.mean.data() + index * dim, mean.data());
    for (size_t f = 0; f < pairs.turned; ++f) {
      const Complex centre(mean[f], mean[n + f]);
      const Complex query = centre * turns[f] * pairs.magnitude * pairs.magnitude;
      out[f] = static_cast<float>(query.real());
      out[n + f] = static_cast<float>(query.imag());
      const double rest = queries.magnitude[index * (dim / 2) + f] - std::abs(centre);
      out[2 * n + f] = static_cast<float>(std::max(0.0, rest));
    }
    return out;
  }

  void Score(const LayerView& stored, float* out) const {
    std::vector<float> scratch;
    const LayerView layer = keys.Of(stored, scratch);
    const size_t n = pairs.pairs(), tokens = layer.tokens;
    const uint32_t group = queries.heads / layer.heads;
    std::vector<float> features(tokens * 3 * n), logits(tokens);
    std::fill_n(out, tokens * layer.heads, 0.0F);
    for (uint32_t h = 0; h < layer.heads; ++h) {
      for (uint32_t t = 0; t < tokens; ++t) {
        pairs.Gather(layer.Key(t, h), features.data() + t * 3 * n);
      }
      VectorSums::Best().pair_lengths({features.data(), tokens, 3 * n, 2 * n},
                                      features.data() + 2 * n, 3 * n);
      for (uint32_t q = 0; q < group; ++q) {
        const std::vector<float> weights = Weights(HeadIndex(layer, queries, h * group + q));
        VectorSums::Best().dot_products({features.data(), tokens, 3 * n, 3 * n}, weights.data(), 0,
                                        logits.data());
        AddStandardized(logits, group, layer.heads, out + h);
      }
    }
  }
};

LayerScore DirectionScore(const PageToScore& page, const RopeSpec& rope) {
  const auto keys = std::make_shared<const TurnedKeys>(page, rope, false);
  return [keys, &queries = *page.queries](const LayerView& stored, float* out) {
    std::vector<float> scratch, along(stored.tokens);
    const LayerView layer = keys->Of(stored, scratch);
    const uint32_t group = queries.heads / layer.heads, dim = layer.dim_k;
    for (uint32_t h = 0; h < layer.heads; ++h) {
      // The mean over the group of what is along each is what is along their mean.
      const float* const first =
          queries.direction.data() + HeadIndex(layer, queries, h * group) * dim;
      std::vector<float> mean(dim);
      VectorSums::Best().add_scaled({first, group, dim, dim},
                                    std::vector<float>(group, 1.0F / group).data(), mean.data());
      VectorSums::Best().dot_products(
          {layer.Key(0, h), layer.tokens, size_t{layer.heads} * dim, dim}, mean.data(), 0,
          along.data());
      for (uint32_t t = 0; t < layer.tokens; ++t) out[size_t{t} * layer.heads + h] = along[t];
    }
  };
}

// Returns the score of layers, which `make` makes for each RoPE that layers of the page have.
template <typename Make>
LayerScore ByRope(const PageToScore& page, const Make& make) {
  LayerScore usual = make(page.spec.rope);
  if (page.spec.other_rope.layers.empty()) return usual;
  return [usual, other = make(page.spec.other_rope.rope), layers = page.spec.other_rope.layers](
             const LayerView& layer, float* out) {
    (std::ranges::binary_search(layers, layer.layer) ? other : usual)(layer, out);
  };
}

}  // namespace

void FindDirections(QueryStatistics& queries) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const size_t dim = queries.dim;
  queries.direction.resize(queries.mean.size());
  for (size_t at = 0; at < queries.mean.size(); at += dim) {
    const Eigen::VectorXd mean =
        Eigen::Map<const Eigen::VectorXf>(queries.mean.data() + at, queries.dim).cast<double>();
    const Eigen::MatrixXd covariance =
        Eigen::Map<const Matrix>(queries.covariance.data() + at * dim, queries.dim, queries.dim)
            .cast<double>();
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(covariance +
                                                                mean * mean.transpose());
    Eigen::VectorXd direction = solver.eigenvectors().col(queries.dim - 1);
    if (direction.dot(mean) < 0) direction = -direction;
    Eigen::Map<Eigen::VectorXf>(queries.direction.data() + at, queries.dim) =
        direction.cast<float>();
  }
}

LayerScore ExpectedAttentionScore(const PageToScore& page, uint32_t ahead) {
  return ByRope(page, [&](const RopeSpec& rope) -> LayerScore {
    const auto score = std::make_shared<const Expected>(page, rope, ahead);
    return [score](const LayerView& layer, float* out) { score->Score(layer, out); };
  });
}

LayerScore QueryDirectionScore(const PageToScore& page) {
  return ByRope(page, [&](const RopeSpec& rope) { return DirectionScore(page, rope); });
}

LayerScore TrigonometricScore(const PageToScore& page) {
  return ByRope(page, [&](const RopeSpec& rope) -> LayerScore {
    const auto score = std::make_shared<const Trigonometric>(page, rope);
    return [score](const LayerView& layer, float* out) { score->Score(layer, out); };
  });
}

}  // namespace kvstow
