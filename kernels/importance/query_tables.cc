#include "kernels/importance/query_tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/query_means.h"
#include "kernels/importance/query_scores.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {
namespace {

size_t Triangle(size_t dim) { return dim * (dim + 1) / 2; }

// Floats of one head: mean, magnitude, lower triangle of the covariance.
size_t FloatsOfHead(size_t dim) { return dim + dim / 2 + Triangle(dim); }

void PutFloats(std::span<const float> values, ByteWriter& out) {
  out.PutBytes({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
}

std::string Serialize(const QueryStatistics& queries) {
  const size_t dim = queries.dim, half = dim / 2;
  ByteWriter out;
  out.Put(queries.heads);
  for (size_t h = 0; h < size_t{queries.layers} * queries.heads; ++h) {
    PutFloats({queries.mean.data() + h * dim, dim}, out);
    PutFloats({queries.magnitude.data() + h * half, half}, out);
    for (size_t r = 0; r < dim; ++r) {
      PutFloats({queries.covariance.data() + (h * dim + r) * dim, r + 1}, out);
    }
  }
  return std::move(out).Take();
}

// Appends one head, [FloatsOfHead(dim)], to `out`. Returns what is wrong with it, or nothing.
std::string AppendHead(std::span<const float> values, QueryStatistics& out) {
  const size_t dim = out.dim, half = dim / 2;
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
    return "a statistic is not finite";
  }
  const auto magnitude = values.subspan(dim, half), triangle = values.subspan(dim + half);
  if (std::any_of(magnitude.begin(), magnitude.end(), [](float x) { return x < 0; })) {
    return "a magnitude is below 0";
  }
  out.mean.insert(out.mean.end(), values.begin(), values.begin() + dim);
  out.magnitude.insert(out.magnitude.end(), magnitude.begin(), magnitude.end());
  const size_t at = out.covariance.size();
  out.covariance.resize(at + dim * dim);
  for (size_t r = 0; r < dim; ++r) {
    if (triangle[Triangle(r) + r] < 0) return "a variance is below 0";
    for (size_t c = 0; c <= r; ++c) {
      out.covariance[at + r * dim + c] = out.covariance[at + c * dim + r] =
          triangle[Triangle(r) + c];
    }
  }
  return "";
}

class QueryFit final : public CalibrationFit {
 public:
  explicit QueryFit(KvSpec spec) : spec_(std::move(spec)) {}

  int passes() const override { return 1; }

  absl::Status Add(const PageToEncode& page) override {
    if (page.queries == nullptr) return absl::OkStatus();
    const QueryStatistics& q = *page.queries;
    KVSTOW_RETURN_IF_ERROR(CheckQueryShape(spec_, q));
    if (texts_ == 0) {
      heads_ = q.heads;
      mean_.assign(q.mean.size(), 0);
      moment_.assign(q.covariance.size(), 0);
      magnitude_.assign(q.magnitude.size(), 0);
    }
    if (q.heads != heads_) {
      return absl::InvalidArgumentError(
          absl::StrCat("queries of ", q.heads, " heads after such of ", heads_));
    }
    ++texts_;
    const size_t dim = q.dim;
    for (size_t i = 0; i < mean_.size(); ++i) mean_[i] += q.mean[i];
    for (size_t i = 0; i < magnitude_.size(); ++i) magnitude_[i] += q.magnitude[i];
    for (size_t i = 0; i < moment_.size(); ++i) {
      const size_t row = i / dim, head = row / dim;
      moment_[i] += q.covariance[i] + double{q.mean[row]} * q.mean[head * dim + i % dim];
    }
    return absl::OkStatus();
  }

  absl::Status EndPass() override { return absl::OkStatus(); }

  absl::StatusOr<std::string> Finish() override {
    if (texts_ == 0) {
      return absl::FailedPreconditionError(
          "there were no queries to take statistics of: use cases with tensors q.L");
    }
    QueryStatistics out{.layers = spec_.layers, .heads = heads_, .dim = spec_.head_dim_k};
    const double n = texts_;
    const size_t dim = out.dim;
    for (const double m : mean_) out.mean.push_back(static_cast<float>(m / n));
    for (const double m : magnitude_) out.magnitude.push_back(static_cast<float>(m / n));
    for (size_t i = 0; i < moment_.size(); ++i) {
      const size_t row = i / dim, column = row / dim * dim + i % dim;
      const double value = moment_[i] / n - mean_[row] / n * (mean_[column] / n);
      // Rounding alone may bring a variance below 0.
      out.covariance.push_back(static_cast<float>(row == column ? std::max(0.0, value) : value));
    }
    return QueryCalibration(spec_, out);
  }

 private:
  const KvSpec spec_;
  uint32_t heads_ = 0;
  uint64_t texts_ = 0;
  std::vector<double> mean_, moment_, magnitude_;  // sums over the texts, shaped as QueryStatistics
};

}  // namespace

absl::Status CheckQueryShape(const KvSpec& spec, const QueryStatistics& queries) {
  const QueryStatistics& q = queries;
  const size_t heads = size_t{q.layers} * q.heads;
  if (q.layers == spec.layers && q.dim == spec.head_dim_k && q.heads > 0 &&
      q.heads <= kMaxQueryHeads && q.heads % spec.kv_heads == 0 && q.mean.size() == heads * q.dim &&
      q.covariance.size() == heads * q.dim * q.dim && q.magnitude.size() == heads * (q.dim / 2)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("statistics of ", q.layers, " layers, ", q.heads,
                                                 " query heads of ", q.dim,
                                                 " do not fit a page of ", spec.layers, " layers, ",
                                                 spec.kv_heads, " KV heads of ", spec.head_dim_k));
}

absl::StatusOr<std::string> QueryCalibration(const KvSpec& spec, const QueryStatistics& queries) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_RETURN_IF_ERROR(CheckQueryShape(spec, queries));
  const CalibrationShape shape = ShapeFor(spec, 1);
  const CalibrationSection section{std::string(kQuerySection), Serialize(queries)};
  const absl::Status readable = ParseQueryTables(shape, AsBytes(section.body)).status();
  if (!readable.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("statistics of the queries: ", readable.message()));
  }
  return SerializeCalibration(shape, {&section, 1});
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseQueryTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  auto out = std::make_shared<QueryTables>();
  QueryStatistics& q = out->statistics;
  q.layers = shape.layers;
  q.heads = in.Get<uint32_t>();
  q.dim = shape.head_dim_k;
  if (!in.ok() || q.heads < 1 || q.heads > kMaxQueryHeads || q.heads % shape.kv_heads != 0) {
    return absl::DataLossError(
        absl::StrCat(q.heads, " query heads for ", shape.kv_heads, " KV heads"));
  }
  const size_t heads = size_t{q.layers} * q.heads;
  std::vector<float> values(FloatsOfHead(q.dim));
  if (in.remaining() != heads * values.size() * sizeof(float)) {
    return absl::DataLossError(absl::StrCat(in.remaining(), " bytes for ", heads, " heads of ",
                                            q.dim, ", which take ", values.size(), " floats each"));
  }
  for (size_t h = 0; h < heads; ++h) {
    const auto bytes = in.GetBytes(values.size() * sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    if (const std::string wrong = AppendHead(values, q); !wrong.empty()) {
      return absl::DataLossError(
          absl::StrCat("layer ", h / q.heads, ", head ", h % q.heads, ": ", wrong));
    }
  }
  FindDirections(q);
  return out;
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartQueryFit(const KvSpec& spec,
                                                              const OpArguments& /*arguments*/,
                                                              const ModelStats& /*stats*/) {
  KVSTOW_RETURN_IF_ERROR(CheckFit(spec, ModelStats()));
  return std::make_unique<QueryFit>(spec);
}

}  // namespace kvstow
