#include "client/case/case_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

absl::StatusOr<std::string> Field(const SafetensorsReader& file, const std::string& name) {
  const auto it = file.metadata().find(name);
  if (it == file.metadata().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": metadata: ", name, " is missing"));
  }
  return it->second;
}

template <typename T>
absl::Status NumberField(const SafetensorsReader& file, const std::string& name, T& out) {
  KVSTOW_ASSIGN_OR_RETURN(const std::string text, Field(file, name));
  bool ok = false;
  if constexpr (std::is_floating_point_v<T>) {
    ok = absl::SimpleAtod(text, &out);
  } else {
    ok = absl::SimpleAtoi(text, &out);
  }
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": metadata: ", name, ": '", text, "' is not a number"));
}

absl::StatusOr<RopeSpec::Layout> ParseLayout(const SafetensorsReader& file) {
  KVSTOW_ASSIGN_OR_RETURN(const std::string text, Field(file, "rope_layout"));
  if (text == "half") return RopeSpec::Layout::kHalf;
  if (text == "interleaved") return RopeSpec::Layout::kInterleaved;
  if (text == "none") return RopeSpec::Layout::kNone;
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": metadata: rope_layout: '", text,
                                                 "' is not half, interleaved or none"));
}

std::string SlabName(Part part, uint32_t layer) {
  return absl::StrCat(part == Part::kK ? "k." : "v.", layer);
}

size_t RowBytes(const KvSpec& spec, Part part) {
  return SlabValues(spec, part, 1) * DTypeBytes(spec.dtype);
}

// Calls fn(slab index, layer, part) for every slab of a page, in its order.
template <typename Fn>
void ForEachSlab(const KvSpec& spec, Fn fn) {
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    fn(2 * layer, layer, Part::kK);
    fn(2 * layer + 1, layer, Part::kV);
  }
}

}  // namespace

absl::StatusOr<CaseFile> CaseFile::Open(const std::string& path) {
  KVSTOW_ASSIGN_OR_RETURN(SafetensorsReader file, SafetensorsReader::Open(path));
  CaseFile out(std::move(file));
  KVSTOW_RETURN_IF_ERROR(out.ReadSpec());
  KVSTOW_RETURN_IF_ERROR(out.ReadTokens());
  KVSTOW_RETURN_IF_ERROR(out.FindSlabs());
  return out;
}

KvSpec CaseFile::Spec(uint32_t page_tokens) const {
  KvSpec spec = spec_;
  spec.page_tokens = page_tokens;
  return spec;
}

absl::Status CaseFile::ReadSpec() {
  if (const auto it = file_.metadata().find("model"); it != file_.metadata().end()) {
    spec_.model = it->second;
  }
  spec_.revision = kUnversioned;
  if (const auto it = file_.metadata().find("revision"); it != file_.metadata().end()) {
    spec_.revision = it->second;
  }
  KVSTOW_RETURN_IF_ERROR(NumberField(file_, "layers", spec_.layers));
  KVSTOW_RETURN_IF_ERROR(NumberField(file_, "kv_heads", spec_.kv_heads));
  KVSTOW_RETURN_IF_ERROR(NumberField(file_, "head_dim", spec_.head_dim_k));
  spec_.head_dim_v = spec_.head_dim_k;
  KVSTOW_RETURN_IF_ERROR(NumberField(file_, "rope_theta", spec_.rope.theta));
  KVSTOW_ASSIGN_OR_RETURN(spec_.rope.layout, ParseLayout(file_));
  KVSTOW_RETURN_IF_ERROR(ReadOtherRope());
  KVSTOW_ASSIGN_OR_RETURN(const Tensor first, file_.Find(SlabName(Part::kK, 0)));
  if (first.dtype != "F16" && first.dtype != "BF16" && first.dtype != "F32") {
    return absl::InvalidArgumentError(
        absl::StrCat(path(), ": tensor k.0: dtype ", first.dtype, " is not F16, BF16 or F32"));
  }
  KVSTOW_ASSIGN_OR_RETURN(spec_.dtype, ParseDType(first.dtype));
  if (absl::Status s = Validate(Spec(1)); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": metadata: ", s.message()));
  }
  return absl::OkStatus();
}

absl::Status CaseFile::ReadOtherRope() {
  constexpr char kTheta[] = "other_rope_theta", kLayers[] = "other_rope_layers";
  if (!metadata().contains(kTheta) && !metadata().contains(kLayers)) return absl::OkStatus();
  spec_.other_rope.rope = spec_.rope;
  KVSTOW_RETURN_IF_ERROR(NumberField(file_, kTheta, spec_.other_rope.rope.theta));
  KVSTOW_ASSIGN_OR_RETURN(const std::string layers, Field(file_, kLayers));
  for (const absl::string_view text : absl::StrSplit(layers, ',')) {
    if (!absl::SimpleAtoi(text, &spec_.other_rope.layers.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat(path(), ": metadata: ", kLayers, ": '", layers,
                                                     "' is not a list of layers"));
    }
  }
  return absl::OkStatus();
}

absl::Status CaseFile::ReadTokens() {
  KVSTOW_ASSIGN_OR_RETURN(const Tensor tensor, file_.Find("tokens"));
  if (tensor.dtype != "I32" || tensor.shape.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path(), ": tensor tokens: is not a list of I32"));
  }
  uint32_t prefix = 0;
  KVSTOW_RETURN_IF_ERROR(NumberField(file_, "prefix", prefix));
  if (prefix == 0 || prefix > tensor.shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": metadata: prefix: ", prefix,
                                                   " is not in 1..", tensor.shape[0],
                                                   ", the number of tokens"));
  }
  tokens_.resize(prefix);
  std::memcpy(tokens_.data(), file_.Data(tensor).data(), prefix * sizeof(int32_t));
  return absl::OkStatus();
}

absl::Status CaseFile::FindSlabs() {
  absl::Status status;
  ForEachSlab(spec_, [&](size_t, uint32_t layer, Part part) {
    if (!status.ok()) return;
    const std::string name = SlabName(part, layer);
    const absl::StatusOr<Tensor> tensor = file_.Find(name);
    if (!tensor.ok()) {
      status = tensor.status();
    } else if (tensor->dtype != DTypeName(spec_.dtype)) {
      status = absl::InvalidArgumentError(absl::StrCat(path(), ": tensor ", name, ": dtype ",
                                                       tensor->dtype, ", but k.0 has ",
                                                       DTypeName(spec_.dtype)));
    } else if (tensor->shape.size() != 3 || tensor->shape[0] < tokens_.size() ||
               tensor->shape[1] != spec_.kv_heads || tensor->shape[2] != spec_.head_dim_k) {
      status = absl::InvalidArgumentError(
          absl::StrCat(path(), ": tensor ", name, ": shape [", absl::StrJoin(tensor->shape, ", "),
                       "], but the metadata say [", tokens_.size(), ", ", spec_.kv_heads, ", ",
                       spec_.head_dim_k, "]"));
    } else {
      slabs_.push_back(file_.Data(*tensor));
    }
  });
  return status;
}

void CaseFile::ReadPage(uint32_t first, uint32_t count, std::span<uint8_t> out) const {
  ForEachSlab(spec_, [&](size_t slab, uint32_t layer, Part part) {
    const size_t row = RowBytes(spec_, part);
    std::memcpy(out.data() + SlabOffset(spec_, layer, part, count),
                slabs_[slab].data() + first * row, count * row);
  });
}

void CaseFile::ReadSlab(uint32_t layer, Part part, std::span<uint8_t> out) const {
  const auto& slab = slabs_[2 * size_t{layer} + (part == Part::kK ? 0 : 1)];
  std::memcpy(out.data(), slab.data(), tokens_.size() * RowBytes(spec_, part));
}

absl::Status WriteDecoded(const std::string& path, const CaseFile& source,
                          std::span<const DecodedPage> pages, uint64_t stored_bytes) {
  const KvSpec spec = source.Spec(1);
  uint64_t tokens = 0;
  for (const DecodedPage& page : pages) tokens += page.count;
  std::vector<NewTensor> tensors;
  ForEachSlab(spec, [&](size_t, uint32_t layer, Part part) {
    tensors.push_back({.name = SlabName(part, layer),
                       .dtype = std::string(DTypeName(spec.dtype)),
                       .shape = {tokens, spec.kv_heads, spec.head_dim_k}});
  });
  const bool sparse = std::any_of(pages.begin(), pages.end(),
                                  [](const DecodedPage& page) { return page.kept != nullptr; });
  for (uint32_t layer = 0; layer < spec.layers && sparse; ++layer) {
    tensors.push_back(
        {.name = absl::StrCat("keep.", layer), .dtype = "U8", .shape = {tokens, spec.kv_heads}});
  }
  TensorMetadata metadata = source.metadata();
  metadata["prefix"] = absl::StrCat(tokens);
  metadata["stored_bytes"] = absl::StrCat(stored_bytes);
  KVSTOW_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::Create(path, tensors, metadata));
  for (const DecodedPage& page : pages) {
    ForEachSlab(spec, [&](size_t slab, uint32_t layer, Part part) {
      const size_t row = RowBytes(spec, part);
      std::memcpy(writer.Data(slab).data() + page.first * row,
                  page.raw.data() + SlabOffset(spec, layer, part, page.count), page.count * row);
    });
    for (uint32_t layer = 0; layer < spec.layers && sparse; ++layer) {
      const size_t row = spec.kv_heads;
      uint8_t* keep = writer.Data(2 * size_t{spec.layers} + layer).data() + page.first * row;
      if (page.kept == nullptr) {
        std::memset(keep, 1, page.count * row);
      } else {
        const uint8_t* from = page.kept->keep.data() + layer * page.count * row;
        std::memcpy(keep, from, page.count * row);
      }
    }
  }
  return writer.Commit();
}

}  // namespace kvstow
