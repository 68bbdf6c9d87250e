#include "client/case/case_attention.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/importance/query_scores.h"
#include "kernels/importance/recent_queries.h"
#include "kernels/page/convert.h"

namespace kvstow {
namespace {

constexpr uint32_t kWindow = 32;  // last queries that `attn_window` and its kin sum over

bool Has(const CaseFile& file, const std::string& name) {
  return file.tensors().tensors().contains(name);
}

absl::Status WrongShape(const CaseFile& file, const std::string& name, const Tensor& tensor) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, ": ", tensor.dtype,
                                                 " [", absl::StrJoin(tensor.shape, ", "),
                                                 "] does not fit the case"));
}

void Append(AttentionColumns& columns, const char* name, uint32_t heads, uint64_t queries,
            const std::vector<float>& layer) {
  AttentionColumn& column = columns[name];
  column.heads = heads;
  column.queries = queries;
  column.scores.insert(column.scores.end(), layer.begin(), layer.end());
}

}  // namespace

absl::StatusOr<CaseAttention> CaseAttention::Read(const CaseFile& file) {
  CaseAttention out;
  out.tokens_ = static_cast<uint32_t>(file.tokens().size());
  for (const char* name : {"attn_sum", "attn_window", "kvzip", "kvzap"}) {
    if (Has(file, absl::StrCat(name, ".0"))) KVSTOW_RETURN_IF_ERROR(out.ReadColumn(file, name));
  }
  if (Has(file, "q.0")) KVSTOW_RETURN_IF_ERROR(out.ReadQueries(file));
  return out;
}

absl::Status CaseAttention::ReadColumn(const CaseFile& file, const std::string& name) {
  const KvSpec spec = file.Spec(1);
  AttentionColumn column;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string tensor_name = absl::StrCat(name, ".", layer);
    KVSTOW_ASSIGN_OR_RETURN(const Tensor tensor, file.tensors().Find(tensor_name));
    const bool fits = tensor.dtype == "F32" && tensor.shape.size() == 2 &&
                      tensor.shape[0] >= tokens_ && tensor.shape[1] > 0 &&
                      tensor.shape[1] % spec.kv_heads == 0 &&
                      (layer == 0 || tensor.shape[1] == column.heads);
    if (!fits) return WrongShape(file, tensor_name, tensor);
    column.heads = static_cast<uint32_t>(tensor.shape[1]);
    const size_t count = size_t{tokens_} * column.heads, at = column.scores.size();
    column.scores.resize(at + count);
    std::memcpy(column.scores.data() + at, file.tensors().Data(tensor).data(),
                count * sizeof(float));
  }
  column.queries = name == "attn_window" ? std::min(kWindow, tokens_) : tokens_;
  columns_[name] = std::move(column);
  return absl::OkStatus();
}

absl::Status CaseAttention::ReadQueries(const CaseFile& file) {
  const KvSpec spec = file.Spec(kMaxPageTokens);
  queries_.emplace();
  std::vector<uint8_t> raw(size_t{tokens_} * SlabValues(spec, Part::kK, 1) *
                           DTypeBytes(spec.dtype));
  std::vector<float> k(SlabValues(spec, Part::kK, tokens_)), q;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const std::string name = absl::StrCat("q.", layer);
    KVSTOW_ASSIGN_OR_RETURN(const Tensor tensor, file.tensors().Find(name));
    const bool fits = tensor.dtype == "F16" && tensor.shape.size() == 3 && tensor.shape[0] > 0 &&
                      tensor.shape[0] <= tokens_ && tensor.shape[1] > 0 &&
                      tensor.shape[1] % spec.kv_heads == 0 && tensor.shape[2] == spec.head_dim_k;
    if (!fits) return WrongShape(file, name, tensor);
    const RecentQueries queries{static_cast<uint32_t>(tensor.shape[0]),
                                static_cast<uint32_t>(tensor.shape[1]), spec.head_dim_k, nullptr};
    q.resize(size_t{queries.count} * queries.heads * queries.dim);
    file.ReadSlab(layer, Part::kK, raw);
    if (!LoadFloats(DType::kF16, file.tensors().Data(tensor).data(), q.size(), q.data()) ||
        !LoadFloats(spec.dtype, raw.data(), k.size(), k.data())) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": ", name, " or k.", layer, " holds NaN or Inf"));
    }
    RecentQueries of_layer = queries;
    of_layer.values = q.data();
    const LayerView view{.layer = layer,
                         .tokens = tokens_,
                         .heads = spec.kv_heads,
                         .dim_k = spec.head_dim_k,
                         .k = k.data()};
    const RecentAttention window = AttentionOf(view, of_layer, kWindow);
    const uint32_t count = std::min(kWindow, queries.count);
    Append(columns_, "attn_window_var", queries.heads, count, window.variance);
    Append(columns_, "attn_last", queries.heads, 1, window.last);
    Append(columns_, "attn_hits", queries.heads, queries.count,
           AttentionOf(view, of_layer, queries.count).hits);
    AppendQueryStatistics(of_layer, RopeOfLayer(spec, layer), tokens_ - queries.count, *queries_);
  }
  FindDirections(*queries_);
  return absl::OkStatus();
}

absl::Status CaseAttention::Need(const std::string& column) const {
  if (columns_.contains(column)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the case has no tensors ", column, ".L: nothing reports its attention"));
}

AttentionColumns CaseAttention::Page(uint32_t first, uint32_t count) const {
  AttentionColumns out;
  for (const auto& [name, column] : columns_) {
    AttentionColumn& part = out[name];
    part.heads = column.heads;
    part.queries = column.queries;
    const size_t layer = size_t{tokens_} * column.heads;
    for (size_t at = first * size_t{column.heads}; at < column.scores.size(); at += layer) {
      const float* from = column.scores.data() + at;
      part.scores.insert(part.scores.end(), from, from + size_t{count} * column.heads);
    }
  }
  return out;
}

}  // namespace kvstow
