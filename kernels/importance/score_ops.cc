// The table of score ops: what a policy can compute from a page, its columns and its queries.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/importance/key_value_scores.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_scores.h"
#include "kernels/importance/query_tables.h"
#include "kernels/importance/score_maps.h"
#include "kernels/page/convert.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {
namespace {

using MakeStep = absl::StatusOr<ScoreStep>;

// Parts of a page that a score looks at.
struct Reads {
  bool k = false, v = false;
};

// Pushes a map that `score` fills layer by layer. A page with NaN or Inf in what it reads has no
// such scores.
absl::Status PushByLayer(ScoreStack& stack, Reads reads, const LayerScore& score) {
  const PageToScore& page = stack.page;
  const KvSpec& spec = page.spec;
  ScoreMap map(spec.layers, page.tokens, spec.kv_heads);
  std::vector<float> k(reads.k ? SlabValues(spec, Part::kK, page.tokens) : 0);
  std::vector<float> v(reads.v ? SlabValues(spec, Part::kV, page.tokens) : 0);
  LayerView view{.tokens = page.tokens,
                 .heads = spec.kv_heads,
                 .dim_k = spec.head_dim_k,
                 .dim_v = spec.head_dim_v,
                 .first_position = page.first_position,
                 .k = k.data(),
                 .v = v.data()};
  for (view.layer = 0; view.layer < spec.layers; ++view.layer) {
    const auto load = [&](Part part, std::vector<float>& out) {
      const size_t at = SlabOffset(spec, view.layer, part, page.tokens);
      return LoadFloats(spec.dtype, page.raw.data() + at, out.size(), out.data());
    };
    if ((!k.empty() && !load(Part::kK, k)) || (!v.empty() && !load(Part::kV, v))) {
      return absl::OutOfRangeError(
          absl::StrCat("layer ", view.layer, " holds NaN or Inf: its tokens have no score"));
    }
    score(view, map.Layer(view.layer));
  }
  stack.scores.push_back(std::move(map));
  return absl::OkStatus();
}

constexpr Reads kNothing, kKeys{.k = true}, kValues{.v = true};

template <void (*kScore)(const LayerView&, float*), const Reads& kReads>
MakeStep MakePlain(const OpArguments&) {
  return ScoreStep([](ScoreStack& stack) { return PushByLayer(stack, kReads, kScore); });
}

MakeStep MakeRandom(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t seed, arguments.Number("seed", 7, 0, UINT32_MAX));
  return ScoreStep([seed](ScoreStack& stack) {
    return PushByLayer(stack, kNothing,
                       [seed](const LayerView& l, float* out) { RandomScore(l, seed, out); });
  });
}

MakeStep MakeLag(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t size, arguments.Number("size", 128, 1, kMaxPageTokens));
  return ScoreStep([size](ScoreStack& stack) {
    return PushByLayer(stack, {.k = true, .v = true},
                       [size](const LayerView& l, float* out) { LagScore(l, size, out); });
  });
}

MakeStep MakeRedundancy(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const double above, arguments.Real("above", 0.5, 0, 1));
  return ScoreStep([above](ScoreStack& stack) {
    return PushByLayer(stack, kKeys, [above](const LayerView& l, float* out) {
      RedundancyScore(l, static_cast<float>(above), out);
    });
  });
}

// `make` gives the score of a page whose statistics of queries fit.
absl::Status PushByQueries(ScoreStack& stack,
                           const std::function<LayerScore(const PageToScore&)>& make) {
  const QueryStatistics* q = stack.page.queries;
  const KvSpec& spec = stack.page.spec;
  if (q == nullptr) {
    return absl::FailedPreconditionError(
        "the policy needs statistics of the queries: make them with `kvstow codec calibrate`");
  }
  KVSTOW_RETURN_IF_ERROR(CheckQueryShape(spec, *q));
  if (q->direction.size() != q->mean.size()) {
    return absl::InvalidArgumentError("statistics of the queries lack their directions");
  }
  return PushByLayer(stack, kKeys, make(stack.page));
}

MakeStep MakeExpected(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t ahead, arguments.Number("ahead", 512, 1, 1 << 20));
  return ScoreStep([ahead](ScoreStack& stack) {
    return PushByQueries(
        stack, [ahead](const PageToScore& page) { return ExpectedAttentionScore(page, ahead); });
  });
}

template <LayerScore (*kScore)(const PageToScore&)>
MakeStep MakeQuery(const OpArguments&) {
  return ScoreStep([](ScoreStack& stack) { return PushByQueries(stack, kScore); });
}

MakeStep MakeColumn(const OpArguments& arguments) {
  const std::string name(arguments.Text("name", ""));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t seen, arguments.Number("seen", 0, 0, UINT32_MAX));
  return ScoreStep([name, seen](ScoreStack& stack) -> absl::Status {
    KVSTOW_ASSIGN_OR_RETURN(ScoreMap map, ColumnScores(stack.page, name));
    if (seen > 0) {
      // Token p of a sequence is seen by all queries from its own on.
      const auto queries = static_cast<double>(stack.page.columns->find(name)->second.queries);
      for (size_t i = 0; i < map.values.size(); ++i) {
        const auto token = static_cast<double>(i / map.heads % map.tokens);
        const double saw = queries - static_cast<double>(stack.page.first_position) - token;
        map.values[i] = static_cast<float>(map.values[i] / std::max<double>(saw, seen));
      }
    }
    stack.scores.push_back(std::move(map));
    return absl::OkStatus();
  });
}

// Reads the heads that need their whole history: a hexadecimal number, a bit a head, layer by
// layer, the first head in the highest bit.
MakeStep MakeHeadTable(const OpArguments& arguments) {
  const std::string table(arguments.Text("heads", ""));
  if (table.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("op 'head_table': heads='", table,
                     "' must be hexadecimal digits: a bit for each head, layer by layer"));
  }
  return ScoreStep([table](ScoreStack& stack) -> absl::Status {
    const KvSpec& spec = stack.page.spec;
    ScoreMap map(spec.layers, stack.page.tokens, spec.kv_heads);
    const size_t heads = size_t{spec.layers} * spec.kv_heads;
    if (table.size() != (heads + 3) / 4) {
      return absl::InvalidArgumentError(absl::StrCat("op 'head_table': ", heads, " heads need ",
                                                     (heads + 3) / 4, " hexadecimal digits, not ",
                                                     table.size()));
    }
    for (size_t i = 0; i < map.values.size(); ++i) {
      const size_t head = i / map.LayerSize() * map.heads + i % map.heads;
      const char c = table[head / 4];
      const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
      map.values[i] = static_cast<float>(digit >> (3 - head % 4) & 1);
    }
    stack.scores.push_back(std::move(map));
    return absl::OkStatus();
  });
}

ScoreStep OnTop(std::function<void(ScoreMap&)> change) {
  return [change = std::move(change)](ScoreStack& stack) {
    change(stack.scores.back());
    return absl::OkStatus();
  };
}

MakeStep MakePool(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const size_t kind, arguments.Word("kind", {"mean", "max"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t width, arguments.Number("width", 5, 1, 1023));
  if (width % 2 == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("op 'pool': width=", width, " must be odd: a token and its neighbours"));
  }
  return OnTop([kind, width](ScoreMap& map) { Pool(map, static_cast<Reduce>(kind), width); });
}

MakeStep MakeChunk(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t size, arguments.Number("size", 20, 1, kMaxPageTokens));
  return OnTop([size](ScoreMap& map) { Chunk(map, size); });
}

MakeStep MakeNorm(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const size_t kind,
                          arguments.Word("kind", {"standard", "softmax", "rank", "max", "sum"}));
  return OnTop([kind](ScoreMap& map) { NormalizeScores(map, static_cast<Normalize>(kind)); });
}

MakeStep MakeHeads(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const size_t kind, arguments.Word("kind", {"mean", "max"}));
  return OnTop([kind](ScoreMap& map) { JoinHeads(map, static_cast<Reduce>(kind)); });
}

MakeStep MakeDecay(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const double half, arguments.Real("half", 256, 1, 1e9));
  return OnTop([half](ScoreMap& map) { Decay(map, half); });
}

MakeStep MakeShift(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const double by, arguments.Real("by", 0, 0, 1e9));
  return OnTop([by](ScoreMap& map) {
    for (float& x : map.values) x = static_cast<float>(x + by);
  });
}

// Takes the top off and joins it to what is below.
ScoreStep OfTwo(std::function<void(ScoreMap&, const ScoreMap&)> join) {
  return [join = std::move(join)](ScoreStack& stack) {
    const ScoreMap top = std::move(stack.scores.back());
    stack.scores.pop_back();
    join(stack.scores.back(), top);
    return absl::OkStatus();
  };
}

MakeStep MakePlus(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const double weight, arguments.Real("weight", 1, 0, 1e9));
  return OfTwo([weight](ScoreMap& a, const ScoreMap& b) { AddScores(a, b, weight); });
}

MakeStep MakeTimes(const OpArguments&) { return OfTwo(MultiplyScores); }

constexpr absl::string_view kSeed[] = {"seed"};
constexpr absl::string_view kSize[] = {"size"};
constexpr absl::string_view kAbove[] = {"above"};
constexpr absl::string_view kAhead[] = {"ahead", "blob"};
constexpr absl::string_view kBlob[] = {"blob"};
constexpr absl::string_view kColumn[] = {"name", "seen"};
constexpr absl::string_view kHeadTable[] = {"heads"};
constexpr absl::string_view kKindWidth[] = {"kind", "width"};
constexpr absl::string_view kKind[] = {"kind"};
constexpr absl::string_view kHalf[] = {"half"};
constexpr absl::string_view kBy[] = {"by"};
constexpr absl::string_view kWeight[] = {"weight"};

constexpr ScoreOpInfo kScoreOps[] = {
    {"position", {}, 0, 1, MakePlain<PositionScore, kNothing>},
    {"random", kSeed, 0, 1, MakeRandom},
    {"key_norm", {}, 0, 1, MakePlain<KeyNormScore, kKeys>},
    {"value_norm", {}, 0, 1, MakePlain<ValueNormScore, kValues>},
    {"key_diversity", {}, 0, 1, MakePlain<KeyDiversityScore, kKeys>},
    {"leverage", {}, 0, 1, MakePlain<LeverageScore, kKeys>},
    {"redundancy", kAbove, 0, 1, MakeRedundancy},
    {"lag", kSize, 0, 1, MakeLag},
    {"column", kColumn, 0, 1, MakeColumn},
    {"head_table", kHeadTable, 0, 1, MakeHeadTable},
    {"expected", kAhead, 0, 1, MakeExpected, true},
    {"query_direction", kBlob, 0, 1, MakeQuery<QueryDirectionScore>, true},
    {"trigonometric", kBlob, 0, 1, MakeQuery<TrigonometricScore>, true},
    {"pool", kKindWidth, 1, 1, MakePool},
    {"chunk", kSize, 1, 1, MakeChunk},
    {"norm", kKind, 1, 1, MakeNorm},
    {"heads", kKind, 1, 1, MakeHeads},
    {"decay", kHalf, 1, 1, MakeDecay},
    {"shift", kBy, 1, 1, MakeShift},
    {"plus", kWeight, 2, 1, MakePlus},
    {"times", {}, 2, 1, MakeTimes},
};

}  // namespace

const ScoreOpInfo* FindScoreOp(absl::string_view name) {
  for (const ScoreOpInfo& op : kScoreOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

absl::StatusOr<ScoreMap> ColumnScores(const PageToScore& page, absl::string_view name) {
  const AttentionColumn* column = nullptr;
  if (page.columns != nullptr) {
    const auto found = page.columns->find(std::string(name));
    if (found != page.columns->end()) column = &found->second;
  }
  if (column == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("nobody reported the column '", name,
                     "' of this page: report it, or choose a policy that needs no attention"));
  }
  const KvSpec& spec = page.spec;
  const size_t want = size_t{spec.layers} * page.tokens * column->heads;
  if (column->heads == 0 || column->heads % spec.kv_heads != 0 || column->scores.size() != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("column '", name, "' has ", column->scores.size(), " scores of ",
                     column->heads, " heads; a page of ", spec.layers, " layers and ", page.tokens,
                     " tokens needs ", want, ", and a multiple of ", spec.kv_heads, " heads"));
  }
  const uint32_t group = column->heads / spec.kv_heads;
  ScoreMap map(spec.layers, page.tokens, spec.kv_heads);
  for (size_t i = 0; i < map.values.size(); ++i) {
    double sum = 0;
    for (uint32_t g = 0; g < group; ++g) sum += column->scores[i * group + g];
    map.values[i] = static_cast<float>(sum / group);
  }
  return map;
}

}  // namespace kvstow
