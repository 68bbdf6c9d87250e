#include "kernels/device/slab_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/split_mix.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/levels.h"
#include "kernels/transform/hadamard.h"

namespace kvstow::gpu {
namespace {

absl::Status NotOnTheGpu(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(what, " is not on the GPU: code it on the CPU"));
}

void SetBits(std::initializer_list<uint32_t> bits, SlabOps& ops) {
  ops.levels = ops.total_bits = 0;
  for (const uint32_t b : bits) {
    ops.bits[ops.levels++] = static_cast<uint8_t>(b);
    ops.total_bits = static_cast<uint8_t>(ops.total_bits + b);
  }
}

void SetRotation(SlabOps& ops) {
  ops.rotated = true;
  for (uint32_t c = 0; c < kMaxDim; ++c) {
    if (SplitMix64(c) & 1) ops.signs[c / kOctet] |= static_cast<uint8_t>(1u << c % kOctet);
  }
  for (uint32_t i = 0; i < std::size(ops.hadamard_scale); ++i) {
    ops.hadamard_scale[i] = HadamardScale(size_t{1} << i);
  }
}

// The recipe has been checked by MakeRunCodec: arguments are good.
absl::Status ReadQuantizer(const OpArguments& arguments, SlabOps& ops, GroupAxes& axes) {
  const absl::string_view name = arguments.op().name;
  if (name == "affine") {
    ops.kind = Kind::kAffine;
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 8, 1, 8));
    KVSTOW_ASSIGN_OR_RETURN(axes, ReadGroupAxes(arguments));
    SetBits({bits}, ops);
  } else if (name == "codebook") {
    if (arguments.Text("norm", "plain") != "plain") return NotOnTheGpu("codebook(norm=corrected)");
    ops.kind = Kind::kCodebook;
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 4, 1, 4));
    SetBits({bits}, ops);
  } else if (name == "levels") {
    ops.kind = Kind::kLevels;
    SetBits({}, ops);
    for (const OpArgument& argument : arguments.op().arguments) {
      uint32_t bits = 0;
      if (!absl::SimpleAtoi(argument.value, &bits)) return NotOnTheGpu(argument.value);
      ops.bits[ops.levels++] = static_cast<uint8_t>(bits);
      ops.total_bits = static_cast<uint8_t>(ops.total_bits + bits);
    }
  } else if (name == "minifloat") {
    ops.kind = Kind::kMinifloat;
    SetBits({8}, ops);
  } else {
    return NotOnTheGpu(absl::StrCat("op '", name, "'"));
  }
  return absl::OkStatus();
}

// See SlabPart::table.
void FillTable(const SlabOps& ops, uint32_t dim, float* table) {
  if (ops.kind == Kind::kCodebook) {
    const std::vector<float> entries = LloydMax(ops.total_bits, dim);
    for (size_t e = 0; e < entries.size(); ++e) {
      table[kEntries + e] = entries[e];
      if (e > 0) table[e - 1] = (entries[e - 1] + entries[e]) * 0.5f;
    }
  }
  if (ops.kind == Kind::kLevels) {
    for (uint32_t bits = 1; bits <= 8; ++bits) {
      const std::vector<float> centroids = LevelCentroids(bits);
      const uint32_t half = 1u << (bits - 1);
      for (uint32_t i = 0; i < half && bits <= 4; ++i) table[half - 1 + i] = centroids[half + i];
      if (bits > 4) table[kOutermost + bits - 5] = centroids.back();
    }
  }
}

void FillHadamard(uint32_t octets, HadamardBlock* blocks) {
  for (uint32_t first = 0; first < octets; ++blocks) {
    const uint32_t n = std::bit_floor(octets - first);
    *blocks = {static_cast<uint8_t>(first), static_cast<uint8_t>(n),
               static_cast<uint8_t>(std::countr_zero(n))};
    first += n;
  }
}

}  // namespace

absl::StatusOr<SlabPlan> SlabPlan::Make(const Recipe& recipe, const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto needs, CalibrationNeeds(recipe));
  if (needs.has_value()) return NotOnTheGpu("op 'joint'");
  KVSTOW_RETURN_IF_ERROR(MakeRunCodec(recipe, spec, nullptr).status());
  SlabOps ops;
  GroupAxes axes;
  for (const Op& op : recipe.ops()) {
    if (op.name == "run") continue;
    if (op.name == "hadamard" && !ops.rotated) {
      SetRotation(ops);
      continue;
    }
    KVSTOW_RETURN_IF_ERROR(ReadQuantizer(OpArguments(op), ops, axes));
  }
  if (spec.dtype != DType::kF16 && spec.dtype != DType::kBF16) {
    return NotOnTheGpu(DTypeName(spec.dtype));
  }
  ops.bf16 = spec.dtype == DType::kBF16;
  SlabPlan plan(spec, ops, axes);
  KVSTOW_RETURN_IF_ERROR(plan.CheckShapes());
  return plan;
}

absl::Status SlabPlan::CheckShapes() const {
  for (const Part part : {Part::kK, Part::kV}) {
    const uint32_t dim = part == Part::kK ? spec_.head_dim_k : spec_.head_dim_v;
    if (dim == 0) continue;
    if (dim < kMinDim || dim > kMaxDim || dim % kOctet != 0) {
      return NotOnTheGpu(absl::StrCat("head_dim ", dim, " (multiples of ", kOctet, " within ",
                                      kMinDim, " and ", kMaxDim, " are)"));
    }
    if (ops_.kind != Kind::kAffine) continue;
    const GroupAxis axis = part == Part::kK ? axes_.k : axes_.v;
    if (axis == GroupAxis::kTensor) return NotOnTheGpu("a group of a whole tensor");
    if (axis == GroupAxis::kChannel && ops_.rotated) {
      return NotOnTheGpu("a rotation before groups by channel");
    }
    if (axis == GroupAxis::kToken && axes_.group < dim && axes_.group % kOctet != 0) {
      return NotOnTheGpu(absl::StrCat("a group of ", axes_.group, " channels"));
    }
  }
  return absl::OkStatus();
}

SlabPart SlabPlan::PartOf(Part which, uint32_t tokens) const {
  const bool k = which == Part::kK;
  SlabPart part;
  part.dim = k ? spec_.head_dim_k : spec_.head_dim_v;
  part.tokens = tokens;
  part.row_octets = spec_.kv_heads * part.dim / kOctet;
  part.octets = tokens * part.row_octets;
  part.tiles = (part.octets + kTileOctets - 1) / kTileOctets;
  part.blocks = (part.octets + kBlockOctets - 1) / kBlockOctets;
  part.vector = DivisorOf(part.dim / kOctet);
  part.tile_vectors = kTileOctets / part.vector.by;
  part.group = part.vector;
  part.span_octets = kTileOctets;
  FillHadamard(part.vector.by, part.hadamard);
  FillTable(ops_, part.dim, part.table);
  part.root = std::sqrt(static_cast<float>(part.dim));
  const SlabShape shape{which, tokens, spec_.kv_heads, part.dim};
  part.scales = static_cast<uint32_t>(shape.vectors());
  if (ops_.kind == Kind::kAffine) {
    const GroupLayout groups = axes_.LayoutOf(shape);
    part.scales = static_cast<uint32_t>(groups.groups());
    part.columns = !groups.along_rows;
    if (part.columns) {
      part.group_tokens = static_cast<uint32_t>(groups.group);
    } else {
      part.vector_scales = part.scales / static_cast<uint32_t>(shape.vectors());
      part.group = DivisorOf(static_cast<uint32_t>(groups.group) / kOctet);
    }
  }
  if (!part.columns && kTileOctets % part.vector.by != 0) {
    part.span_octets += 2 * (part.vector.by - 1);
  }
  return part;
}

PageLayout SlabPlan::LayoutOf(uint32_t tokens) const {
  PageLayout layout;
  layout.layers = spec_.layers;
  layout.tokens = tokens;
  layout.raw_layer_bytes = LayerBytes(spec_, tokens);
  layout.parts = spec_.head_dim_v > 0 ? 2 : 1;
  for (uint32_t p = 0; p < layout.parts; ++p) {
    SlabPart& part = layout.part[p] = PartOf(static_cast<Part>(p), tokens);
    part.raw_offset = p == 0 ? 0 : size_t{layout.part[0].octets} * kOctetBytes;
    const size_t halves = size_t{part.scales} * (ops_.kind == Kind::kAffine ? 2 : 1);
    for (uint32_t level = 0; level < ops_.levels; ++level) {
      part.body_offset[level] = layout.layer_bytes[level];
      layout.layer_bytes[level] +=
          (level == 0 ? 2 * halves : 0) + size_t{part.octets} * ops_.bits[level];
    }
  }
  for (uint32_t level = 0; level < ops_.levels; ++level) {
    layout.level_offset[level + 1] =
        layout.level_offset[level] + layout.layers * layout.layer_bytes[level];
  }
  return layout;
}

std::vector<double> GainsOf(const double* totals, uint32_t slabs, uint32_t levels,
                            uint32_t tokens) {
  std::vector<double> gains;
  for (uint32_t slab = 0; slab < slabs; ++slab) {
    const double energy = *totals++;
    double left = 1;
    for (uint32_t level = 0; level < levels; ++level) {
      const double error = *totals++;
      const double now = energy > 0 ? error / energy : 0;
      gains.push_back(tokens * std::max(left - now, 0.0));
      left = std::min(left, now);
    }
  }
  return gains;
}

}  // namespace kvstow::gpu
