#include "kernels/methods/pca_run_codec.h"

#include <zlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/methods/vector_run_codec.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {
namespace {

constexpr size_t kChunkTokens = 192;  // vectors that are multiplied at once
constexpr size_t kMaxPlans = 8;

struct PcaPart {
  std::vector<float> mean;
  PackedMatrix encode, decode;  // [width, rank], [rank, width]
  std::vector<ComponentPlan> plans;
};

struct PcaTables final : CalibratedTables {
  std::vector<float> bits;
  std::vector<PcaPart> parts;
};

bool AppendDeflated(const std::string& bytes, std::string& out) {
  uLongf size = compressBound(bytes.size());
  const size_t at = out.size() + sizeof(uint32_t);
  out.resize(at + size);
  if (compress2(reinterpret_cast<Bytef*>(out.data() + at), &size,
                reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(),
                Z_BEST_COMPRESSION) != Z_OK) {
    return false;
  }
  out.resize(at + size);
  const auto stored = static_cast<uint32_t>(size);
  std::copy_n(reinterpret_cast<const char*>(&stored), sizeof(stored), &out[at - sizeof(stored)]);
  return true;
}

// `out` has the size that is expected.
bool Inflate(std::span<const uint8_t> bytes, std::string& out) {
  uLongf size = out.size();
  uLong used = bytes.size();
  return uncompress2(reinterpret_cast<Bytef*>(out.data()), &size, bytes.data(), &used) == Z_OK &&
         size == out.size() && used == bytes.size();
}

class PcaCoder final : public VectorCoder {
 public:
  PcaCoder(const KvSpec& spec, std::shared_ptr<const PcaTables> tables, uint32_t layers_per_run,
           size_t plan)
      : spec_(spec), tables_(std::move(tables)), layers_per_run_(layers_per_run), plan_(plan) {}

  bool Encode(LayerRange layers, const float* x, size_t tokens, std::string& out) const override {
    size_t column = 0;
    const size_t stride = Stride(layers);
    for (const PcaPart* const part : Parts(layers)) {
      const std::vector<float> c = Project(*part, x + column, stride, tokens);
      std::string bytes;
      if (!EncodeComponents(part->plans[plan_], c.data(), tokens, part->encode.columns(), bytes) ||
          !AppendDeflated(bytes, out)) {
        return false;
      }
      column += part->mean.size();
    }
    return true;
  }

  absl::Status Decode(LayerRange layers, std::span<const uint8_t> body, size_t tokens,
                      float* x) const override {
    ByteReader in(body);
    size_t column = 0;
    const size_t stride = Stride(layers);
    for (const PcaPart* const part : Parts(layers)) {
      const auto deflated = in.GetBytes(in.Get<uint32_t>());
      const ComponentPlan& plan = part->plans[plan_];
      std::string bytes(in.ok() ? EncodedComponentBytes(plan, tokens) : 0, 0);
      std::vector<float> c(in.ok() ? tokens * part->encode.columns() : 0);
      if (!in.ok() || !Inflate(deflated, bytes) ||
          !DecodeComponents(plan, reinterpret_cast<const uint8_t*>(bytes.data()), tokens,
                            part->encode.columns(), c.data())) {
        return absl::DataLossError("coefficients are damaged or cut off");
      }
      const size_t width = part->mean.size();
      MultiplyRows(c.data(), tokens, part->decode, {0, width}, x + column, stride);
      for (size_t t = 0; t < tokens; ++t) {
        float* const row = x + t * stride + column;
        for (size_t j = 0; j < width; ++j) row[j] += part->mean[j];
      }
      column += width;
    }
    if (in.remaining() == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(in.remaining(), " bytes follow the coefficients"));
  }

 private:
  std::vector<const PcaPart*> Parts(LayerRange layers) const {
    const size_t parts = spec_.head_dim_v > 0 ? 2 : 1;
    std::vector<const PcaPart*> out;
    for (size_t i = 0; i < parts; ++i) {
      out.push_back(&tables_->parts[layers.first / layers_per_run_ * parts + i]);
    }
    return out;
  }

  size_t Stride(LayerRange layers) const {
    return layers.count * (SlabValues(spec_, Part::kK, 1) + SlabValues(spec_, Part::kV, 1));
  }

  std::vector<float> Project(const PcaPart& part, const float* x, size_t stride,
                             size_t tokens) const {
    const size_t width = part.mean.size(), rank = part.encode.columns();
    std::vector<float> c(tokens * rank), centred(std::min(tokens, kChunkTokens) * width);
    for (size_t done = 0; done < tokens; done += kChunkTokens) {
      const size_t n = std::min(kChunkTokens, tokens - done);
      for (size_t t = 0; t < n; ++t) {
        const float* const row = x + (done + t) * stride;
        for (size_t j = 0; j < width; ++j) centred[t * width + j] = row[j] - part.mean[j];
      }
      MultiplyRows(centred.data(), n, part.encode, {0, rank}, c.data() + done * rank, rank);
    }
    return c;
  }

  const KvSpec spec_;
  const std::shared_ptr<const PcaTables> tables_;
  const uint32_t layers_per_run_;
  const size_t plan_;
};

bool GetPlan(ByteReader& in, size_t rank, ComponentPlan& plan) {
  const auto groups = in.Get<uint32_t>();
  size_t left = rank;
  for (uint32_t i = 0; i < groups; ++i) {
    const auto size = in.Get<uint16_t>();
    const auto type = in.Get<uint8_t>();
    const bool known = std::find(kGroupSizes.begin(), kGroupSizes.end(), size) != kGroupSizes.end();
    if (!in.ok() || !known || size > left || type >= kComponentTypes) return false;
    left -= size;
    plan.push_back({size, static_cast<ComponentType>(type)});
  }
  return in.ok();
}

bool GetPart(ByteReader& in, size_t width, size_t plans, PcaPart& part) {
  const size_t rank = in.Get<uint32_t>();
  std::vector<float> scales;
  if (rank < 1 || rank > width || in.remaining() / (2 * width) < rank ||
      !ReadFloats(in, width, part.mean) || !ReadFloats(in, rank, scales) ||
      in.remaining() / (2 * width) < rank) {
    return false;
  }
  part.encode = PackedMatrix(width, rank);
  part.decode = PackedMatrix(rank, width);
  const auto set = [&](size_t i, std::span<const float> row) {
    part.encode.SetColumn(i, row);
    part.decode.SetRow(i, row);
  };
  if (!ReadRows(in, scales, width, set)) return false;
  part.plans.resize(plans);
  for (ComponentPlan& plan : part.plans) {
    if (!GetPlan(in, rank, plan)) return false;
  }
  return true;
}

}  // namespace

std::string SerializePca(const PcaData& data) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(data.bits.size()));
  PutFloats(data.bits, out);
  for (const PcaPartData& part : data.parts) {
    out.Put(static_cast<uint32_t>(part.scales.size()));
    PutFloats(part.mean, out);
    PutFloats(part.scales, out);
    PutHalves(part.halves, out);
    for (const ComponentPlan& plan : part.plans) {
      out.Put(static_cast<uint32_t>(plan.size()));
      for (const ComponentGroup& group : plan) {
        out.Put(group.size);
        out.Put(static_cast<uint8_t>(group.type));
      }
    }
  }
  return std::move(out).Take();
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParsePcaTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  const auto tables = std::make_shared<PcaTables>();
  const auto plans = in.Get<uint32_t>();
  if (plans < 1 || plans > kMaxPlans || !ReadFloats(in, plans, tables->bits)) {
    return absl::DataLossError("its numbers of bits are damaged");
  }
  for (uint32_t run = 0; run < shape.runs(); ++run) {
    for (const uint32_t dim : {shape.head_dim_k, shape.head_dim_v}) {
      if (dim == 0) continue;
      const size_t width = size_t{shape.LayersOfRun(run)} * shape.kv_heads * dim;
      if (!GetPart(in, width, plans, tables->parts.emplace_back())) {
        return absl::DataLossError(absl::StrCat("run ", run, " is damaged"));
      }
    }
  }
  if (in.remaining() > 0) return absl::DataLossError("bytes follow its last run");
  return tables;
}

absl::StatusOr<double> ReadPcaBits(const OpArguments& arguments) {
  return arguments.Real("bits", 1, 0.05, 8);
}

absl::StatusOr<std::unique_ptr<const RunCodec>> MakePcaRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "run", "first", "last", "blob"}));
  KVSTOW_ASSIGN_OR_RETURN(const double bits, ReadPcaBits(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const RawTokens raw_tokens, ReadRawTokens(arguments, 4));
  KVSTOW_ASSIGN_OR_RETURN(auto tables,
                          TablesFor<PcaTables>(arguments, spec, std::move(calibration)));
  const auto plan = std::find(tables->bits.begin(), tables->bits.end(), static_cast<float>(bits));
  if (plan == tables->bits.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "op 'pca': the calibration has no plan for bits=", bits, ": make one for this recipe"));
  }
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  const auto index = static_cast<size_t>(plan - tables->bits.begin());
  const uint32_t layers = std::min(need.layers_per_run, spec.layers);
  return MakeVectorRunCodec(spec, layers, raw_tokens,
                            std::make_unique<PcaCoder>(spec, std::move(tables), layers, index));
}

}  // namespace kvstow
