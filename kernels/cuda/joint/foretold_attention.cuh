// Steps that foretell the attention of calibrated pages and what it does to the steps of their
// tokens: importance/foretold_attention.cc and token_steps.cc, but for sums in F32 and logarithms
// of the platform. Decisions that those make are written into the page.
//
// All sums have a fixed order: a page always gets the same scores.
// joint_steps.cuh says what a step is.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_FORETOLD_ATTENTION_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_FORETOLD_ATTENTION_CUH_

#include "kernels/cuda/joint/joint_steps.cuh"
#include "kernels/device/asking_layout.h"
#include "kernels/importance/exponential.h"
#include "kernels/importance/token_steps.h"

namespace kvstow::gpu {

// The raw K of a token in a layer.
class RawKey {
 public:
  KVSTOW_GPU RawKey(const AskLaunch& launch, uint32_t page, uint32_t layer, uint32_t token)
      : dtype_(launch.dtype) {
    const size_t values = size_t{token} * launch.heads * launch.dim;
    raw_ = launch.page[page] + layer * launch.layer_bytes + values * bytes();
  }
  KVSTOW_GPU float operator[](size_t i) const { return ReadRaw(raw_ + i * bytes(), dtype_); }

 private:
  KVSTOW_GPU uint32_t bytes() const { return dtype_ == DType::kF32 ? 4 : 2; }

  const DType dtype_;
  const uint8_t* raw_;
};

// Channel `channel` of a vector at a token once the RoPE of a layer turned it; value(channel) is
// what it was before.
template <typename Value>
KVSTOW_GPU float TurnedChannel(const AskLaunch& launch, const LayerTurn& turn, uint32_t page,
                               uint32_t token, uint32_t channel, const Value& value) {
  const float mine = value(channel);
  if (channel >= 2 * turn.pairs) return mine;
  const bool leads = channel / turn.apart % 2 == 0;
  const uint32_t pair = turn.first_pair + (turn.apart == 1 ? channel / 2 : channel % turn.pairs);
  const float others = value(leads ? channel + turn.apart : channel - turn.apart);
  const size_t at = (size_t{page} * launch.tokens + token) * launch.pairs + pair;
  const float c = launch.cosines[at] * launch.magnitude, s = launch.sines[at] * launch.magnitude;
  return leads ? mine * c - others * s : mine * c + others * s;
}

// The angles of RoPE, of all tokens.
struct MakeAskingAngles {
  KVSTOW_GPU uint32_t Items(const AskLaunch& launch) const { return launch.tokens * launch.pairs; }
  KVSTOW_GPU void One(const AskLaunch& launch, uint32_t page, uint32_t item) const {
    PutAngle(launch, launch.first_position[page] + item / launch.pairs, item % launch.pairs,
             size_t{page} * Items(launch) + item);
  }
};

// The sum of what the threads of a block put into `partials`, in partials[kThreads].
template <typename Run>
KVSTOW_GPU void AddUp(float* partials, const Run& run) {
  for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
    run([&](uint32_t thread) {
      if (thread < half) partials[thread] += partials[thread + half];
    });
  }
  run([&](uint32_t thread) {
    if (thread == 0) partials[kThreads] = partials[0];
  });
}

// Raw pages to scores, a block for a KV head of a query layer: the softmax of its queries,
// kQueriesTogether at a time, over the tokens up to the query's own.
struct Attend {
  static constexpr uint32_t kTile = 32;         // tokens whose K is in shared memory
  static constexpr uint32_t kSlice = 64;        // channels of it, and of the queries
  static constexpr uint32_t kRow = kSlice + 1;  // apart: 32 rows are in 32 banks
  static constexpr uint32_t kLanes = kThreads / kQueriesTogether;  // threads of a softmax

  uint32_t Blocks(const AskLaunch& launch) const { return launch.query_layers * launch.heads; }
  size_t SharedBytes(const AskLaunch&) const {
    return ((kQueriesTogether + kTile) * kRow + 2 * kThreads + kQueriesTogether + 1) *
           sizeof(float);
  }

  // A block's work: its place, and its memory.
  struct Head {
    uint32_t page, layer, head;  // `layer` is an index of query layers
    uint32_t group, queries;     // query heads; of all tokens that ask
    float *logits, *scores;      // [kQueriesTogether, tokens], [tokens]
    // Shared.
    float *query, *key;  // slices of kQueriesTogether queries and of kTile tokens
    float* largest;      // [kThreads]
    float* sums;         // [kThreads + 1]
    float* scales;       // [kQueriesTogether]

    KVSTOW_GPU Head(const AskLaunch& launch, uint32_t page_, uint32_t block, uint8_t* shared)
        : page(page_), layer(block / launch.heads), head(block % launch.heads) {
      group = launch.query_heads / launch.heads;
      queries = launch.asking() * group;
      const size_t at = (size_t{page} * launch.query_layers + layer) * launch.heads + head;
      logits = launch.logits + at * kQueriesTogether * launch.tokens;
      scores = launch.scores + at * launch.tokens;
      query = reinterpret_cast<float*>(shared);
      key = query + kQueriesTogether * kRow;
      largest = key + kTile * kRow;
      sums = largest + kThreads;
      scales = sums + kThreads + 1;
    }
    // The token that query `i` is of; it sees the tokens up to this one.
    KVSTOW_GPU uint32_t TokenOf(const AskLaunch& launch, uint32_t i) const {
      return AskingToken(launch.tokens, i / group);
    }
  };

  template <typename Run>
  KVSTOW_GPU void Code(const AskLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const Head of(launch, page, block, shared);
    run([&](uint32_t thread) {
      for (uint32_t t = thread; t < launch.tokens; t += kThreads) of.scores[t] = 0;
    });
    for (uint32_t first = 0; first < of.queries; first += kQueriesTogether) {
      const uint32_t left = of.queries - first;
      const uint32_t count = left < kQueriesTogether ? left : kQueriesTogether;
      for (uint32_t c = 0; c < launch.dim; c += kSlice) {
        AddProducts(launch, of, first, count, c, run);
      }
      AddSoftmax(launch, of, first, count, run);
    }
    Normalize(launch, of, run);
  }

 private:
  // Makes the logits of `count` queries, or adds to them what channels from `from` on make.
  template <typename Run>
  KVSTOW_GPU static void AddProducts(const AskLaunch& launch, const Head& of, uint32_t first,
                                     uint32_t count, uint32_t from, const Run& run) {
    const uint32_t rest = launch.dim - from, slice = rest < kSlice ? rest : kSlice;
    const uint32_t seen = of.TokenOf(launch, first + count - 1) + 1;
    run([&](uint32_t thread) {
      for (uint32_t i = thread; i < count * slice; i += kThreads) {
        of.query[i / slice * kRow + i % slice] =
            QueryValue(launch, of, first + i / slice, from + i % slice);
      }
    });
    for (uint32_t tile = 0; tile < seen; tile += kTile) {
      const uint32_t tokens = seen - tile < kTile ? seen - tile : kTile;
      run([&](uint32_t thread) {
        for (uint32_t i = thread; i < tokens * slice; i += kThreads) {
          of.key[i / slice * kRow + i % slice] =
              KeyValue(launch, of, tile + i / slice, from + i % slice);
        }
      });
      run([&](uint32_t thread) {
        const uint32_t t = thread % kTile;
        if (t >= tokens) return;
        for (uint32_t i = thread / kTile; i < count; i += kThreads / kTile) {
          float sum = 0;
          for (uint32_t c = 0; c < slice; ++c) sum += of.query[i * kRow + c] * of.key[t * kRow + c];
          float& logit = of.logits[size_t{i} * launch.tokens + tile + t];
          logit = from == 0 ? sum : logit + sum;
        }
      });
    }
  }

  KVSTOW_GPU static float QueryValue(const AskLaunch& launch, const Head& of, uint32_t query,
                                     uint32_t channel) {
    const size_t head =
        size_t{of.layer} * launch.query_heads + of.head * of.group + query % of.group;
    const float* const mean = launch.queries + head * launch.dim;
    return TurnedChannel(launch, launch.turns[of.layer], of.page, of.TokenOf(launch, query),
                         channel, [&](uint32_t c) { return mean[c]; });
  }
  KVSTOW_GPU static float KeyValue(const AskLaunch& launch, const Head& of, uint32_t token,
                                   uint32_t channel) {
    const RawKey k(launch, of.page, launch.layers[of.layer], token);
    const size_t before = size_t{of.head} * launch.dim;
    const auto value = [&](uint32_t c) { return k[before + c]; };
    if (launch.k_is_turned) return value(channel);
    return TurnedChannel(launch, launch.turns[of.layer], of.page, token, channel, value);
  }

  // Adds the weights of `count` queries to the scores.
  template <typename Run>
  KVSTOW_GPU static void AddSoftmax(const AskLaunch& launch, const Head& of, uint32_t first,
                                    uint32_t count, const Run& run) {
    const auto seen = [&](uint32_t i) { return of.TokenOf(launch, first + i) + 1; };
    const auto logits = [&](uint32_t i) { return of.logits + size_t{i} * launch.tokens; };
    run([&](uint32_t thread) {
      const uint32_t i = thread / kLanes, lane = thread % kLanes;
      if (i >= count) return;
      float largest = logits(i)[0];
      for (uint32_t t = lane; t < seen(i); t += kLanes) largest = Most(logits(i)[t], largest);
      of.largest[thread] = largest;
    });
    run([&](uint32_t thread) {
      const uint32_t i = thread / kLanes, lane = thread % kLanes;
      if (i >= count) return;
      float largest = of.largest[i * kLanes];
      for (uint32_t j = 1; j < kLanes; ++j) largest = Most(of.largest[i * kLanes + j], largest);
      of.sums[thread] = WeightsOf(logits(i), lane, seen(i), largest);
    });
    run([&](uint32_t thread) {
      if (thread >= count) return;
      float sum = 0;
      for (uint32_t j = 0; j < kLanes; ++j) sum += of.sums[thread * kLanes + j];
      of.scales[thread] = 1 / sum;
    });
    run([&](uint32_t thread) {
      for (uint32_t t = thread; t < launch.tokens; t += kThreads) {
        float score = of.scores[t];
        for (uint32_t i = 0; i < count; ++i) {
          if (t < seen(i)) score += logits(i)[t] * of.scales[i];
        }
        of.scores[t] = score;
      }
    });
  }

  // Makes weights of one lane's logits; returns their sum.
  KVSTOW_GPU static float WeightsOf(float* logits, uint32_t lane, uint32_t seen, float largest) {
    float sum = 0;
    for (uint32_t t = lane; t < seen; t += kLanes) {
      const float below = logits[t] - largest;
      logits[t] = below > kLeastLogit ? FixedExp(below) : 0;
      sum += logits[t];
    }
    return sum;
  }

  // Divides each sum by the number of queries that see the token, and all by their mean. A score
  // that is not finite becomes 0.
  template <typename Run>
  KVSTOW_GPU static void Normalize(const AskLaunch& launch, const Head& of, const Run& run) {
    run([&](uint32_t thread) {
      float sum = 0;
      for (uint32_t t = thread; t < launch.tokens; t += kThreads) {
        of.scores[t] /= static_cast<float>(AskingThatSee(launch.tokens, t));
        sum += of.scores[t];
      }
      of.sums[thread] = sum;
    });
    AddUp(of.sums, run);
    run([&](uint32_t thread) {
      const float scale = static_cast<float>(launch.tokens) / of.sums[kThreads];
      for (uint32_t t = thread; t < launch.tokens; t += kThreads) {
        const float score = of.scores[t] * scale;
        of.scores[t] = IsFiniteFloat(score) ? score : 0;
      }
    });
  }
};

// Scores to the steps of tokens, a block for a run of layers. Scores of layers between two query
// layers are between theirs, and each head's have the mean 1. So a run's importance is a sum of
// those of query layers.
struct StepsOfScores {
  uint32_t Blocks(const AskLaunch& launch) const { return launch.runs; }
  size_t SharedBytes(const AskLaunch&) const { return 2 * (kThreads + 1) * sizeof(float); }

  template <typename Run>
  KVSTOW_GPU void Code(const AskLaunch& launch, uint32_t page, uint32_t r, uint8_t* shared,
                       const Run& run) const {
    float* const sums = reinterpret_cast<float*>(shared);
    float* const log_sums = sums + kThreads + 1;
    const auto tokens = static_cast<float>(launch.tokens);
    float* const out = launch.log_steps + r * launch.run_stride + size_t{page} * launch.tokens;
    run([&](uint32_t thread) {
      float sum = 0;
      for (uint32_t t = thread; t < launch.tokens; t += kThreads)
        sum += out[t] = Importance(launch, page, r, t);
      sums[thread] = sum;
    });
    AddUp(sums, run);
    run([&](uint32_t thread) {
      const float all = sums[kThreads];
      float sum = 0;
      for (uint32_t t = thread; t < launch.tokens; t += kThreads) {
        // Where nothing is known, all is as usual.
        const float importance = all > 0 ? out[t] / all * tokens : 1;
        sum += out[t] = std::log2(Most(importance, kLeastImportance));
      }
      log_sums[thread] = sum;
    });
    AddUp(log_sums, run);
    run([&](uint32_t thread) {
      const auto power = static_cast<float>(kForetoldPower);
      const float mean = log_sums[kThreads] / tokens;
      for (uint32_t t = thread; t < launch.tokens; t += kThreads) out[t] = power * (mean - out[t]);
    });
  }

 private:
  KVSTOW_GPU static float Importance(const AskLaunch& launch, uint32_t page, uint32_t r,
                                     uint32_t token) {
    float importance = 0;
    for (uint32_t layer = 0; layer < launch.query_layers; ++layer) {
      const float share = launch.shares[size_t{r} * launch.query_layers + layer];
      if (share == 0) continue;
      const size_t heads = (size_t{page} * launch.query_layers + layer) * launch.heads;
      float sum = 0;
      for (uint32_t h = 0; h < launch.heads; ++h)
        sum += launch.scores[(heads + h) * launch.tokens + token];
      importance += share * sum;
    }
    return importance;
  }
};

template <typename Start>
void Ask(const AskLaunch& launch, const Start& start) {
  if (launch.pairs > 0) start(EachItem{MakeAskingAngles{}});
  start(Attend{});
  start(StepsOfScores{});
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_FORETOLD_ATTENTION_CUH_
