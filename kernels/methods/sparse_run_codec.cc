#include "kernels/methods/sparse_run_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/importance/merge.h"
#include "kernels/methods/kept_tokens.h"
#include "kernels/page/convert.h"
#include "kernels/page/squared_error.h"

namespace kvstow {
namespace {

// Where the bytes of each (layer, head) of a run stand in a body.
struct Parts {
  std::vector<std::span<const uint8_t>> bytes;  // [layers, heads]
};

// The lengths and parts that end a body.
absl::StatusOr<Parts> ReadParts(ByteReader& in, size_t count) {
  const std::span<const uint8_t> lengths = in.GetBytes(count * sizeof(uint32_t));
  if (!in.ok()) return absl::DataLossError("a sparse body ends within its lengths");
  Parts out;
  ByteReader each(lengths);
  for (size_t i = 0; i < count; ++i) out.bytes.push_back(in.GetBytes(each.Get<uint32_t>()));
  if (in.ok() && in.remaining() == 0) return out;
  return absl::DataLossError("a sparse body's parts do not fill it");
}

class SparseRunCodec final : public RunCodec {
 public:
  SparseRunCodec(const KvSpec& spec, std::unique_ptr<const RunCodec> head_codec)
      : spec_(spec), head_codec_(std::move(head_codec)) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return head_codec_->levels(); }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    if (run.kept == nullptr) return absl::InternalError("a sparse run without a selection");
    std::vector<std::vector<EncodedLevel>> coded;  // [layers * heads][level], or empty
    std::vector<double> gains(levels(), 0);
    for (uint32_t i = 0; i < run.layers.count; ++i) {
      for (uint32_t h = 0; h < spec_.kv_heads; ++h) {
        const std::vector<uint32_t> kept = KeptOf(*run.kept, run.layers.first + i, h);
        coded.emplace_back();
        if (kept.empty()) continue;
        const std::vector<uint8_t> head = run.kept->merge && spec_.head_dim_v > 0
                                              ? Merge(raw, i, h, run.tokens, kept)
                                              : Gather(raw, i, h, run.tokens, kept);
        KVSTOW_ASSIGN_OR_RETURN(coded.back(), head_codec_->Encode(HeadRun(run, kept.size()), head));
        KVSTOW_RETURN_IF_ERROR(AddGains(run, raw, i, h, head, kept.size(), coded.back(), gains));
      }
    }
    std::vector<EncodedLevel> out;
    ByteWriter kept_tokens;
    WriteKept(*run.kept, run.layers, kept_tokens);
    for (uint32_t level = 0; level < levels(); ++level) {
      std::string body = level == 0 ? kept_tokens.bytes() : std::string();
      AppendParts(coded, level, body);
      out.push_back({SharedBytes::Take(std::move(body)), gains[level]});
    }
    return out;
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    if (bodies.empty() || bodies.size() > levels()) {
      return absl::DataLossError(
          absl::StrCat(bodies.size(), " levels where the recipe has ", levels()));
    }
    KVSTOW_ASSIGN_OR_RETURN(const Selection kept, ReadKept(bodies[0].span(), run.layers.count,
                                                           run.tokens, spec_.kv_heads));
    std::vector<Parts> parts;
    for (size_t level = 0; level < bodies.size(); ++level) {
      ByteReader in(bodies[level].span());
      if (level == 0) in.GetBytes(KeptBytes(kept));
      KVSTOW_ASSIGN_OR_RETURN(parts.emplace_back(),
                              ReadParts(in, size_t{run.layers.count} * spec_.kv_heads));
    }
    std::fill(raw.begin(), raw.end(), uint8_t{0});
    for (uint32_t i = 0; i < wanted.count; ++i) {
      const uint32_t layer = wanted.first - run.layers.first + i;
      for (uint32_t h = 0; h < spec_.kv_heads; ++h) {
        KVSTOW_RETURN_IF_ERROR(DecodeHead(run, kept, parts, layer, h, i, raw));
      }
    }
    return absl::OkStatus();
  }

 private:
  // The one layer of one head, `tokens` of its tokens, as a run of its own.
  static Run HeadRun(const Run& run, size_t tokens) {
    return {.layers = {0, 1},
            .tokens = static_cast<uint32_t>(tokens),
            .first_position = run.first_position};
  }

  static void AppendParts(const std::vector<std::vector<EncodedLevel>>& coded, uint32_t level,
                          std::string& body) {
    ByteWriter lengths, parts;
    for (const std::vector<EncodedLevel>& head : coded) {
      lengths.Put(static_cast<uint32_t>(head.empty() ? 0 : head[level].body.size()));
      if (!head.empty()) parts.PutBytes(head[level].body.span());
    }
    body += lengths.bytes();
    body += parts.bytes();
  }

  size_t VectorBytes(Part part) const {
    return DTypeBytes(spec_.dtype) * (part == Part::kK ? spec_.head_dim_k : spec_.head_dim_v);
  }
  // Where the vector of a token and head stands in a raw run whose first layer is layer 0.
  size_t VectorAt(Part part, uint32_t layer, uint32_t head, uint32_t tokens, uint32_t token) const {
    return SlabOffset(spec_, layer, part, tokens) +
           (size_t{token} * spec_.kv_heads + head) * VectorBytes(part);
  }

  // K and then V of the kept tokens of one head: a raw page of one layer and one head.
  std::vector<uint8_t> Gather(std::span<const uint8_t> raw, uint32_t layer, uint32_t head,
                              uint32_t tokens, const std::vector<uint32_t>& kept) const {
    std::vector<uint8_t> out;
    out.reserve(kept.size() * (VectorBytes(Part::kK) + VectorBytes(Part::kV)));
    for (const Part part : {Part::kK, Part::kV}) {
      for (const uint32_t t : kept) {
        const auto from = raw.subspan(VectorAt(part, layer, head, tokens, t), VectorBytes(part));
        out.insert(out.end(), from.begin(), from.end());
      }
    }
    return out;
  }

  // As Gather, with the values of the other tokens merged into those of the kept.
  std::vector<uint8_t> Merge(std::span<const uint8_t> raw, uint32_t layer, uint32_t head,
                             uint32_t tokens, const std::vector<uint32_t>& kept) const {
    std::vector<uint32_t> every(tokens);
    std::iota(every.begin(), every.end(), 0u);
    std::vector<uint8_t> all = Gather(raw, layer, head, tokens, every);
    const size_t keys = size_t{tokens} * spec_.head_dim_k;
    std::vector<float> x(all.size() / DTypeBytes(spec_.dtype));
    // NaN and Inf stay where they are: the page is then kept exactly.
    if (!LoadFloats(spec_.dtype, all.data(), x.size(), x.data())) {
      return Gather(raw, layer, head, tokens, kept);
    }
    std::vector<uint8_t> keep(tokens);
    for (const uint32_t t : kept) keep[t] = 1;
    const std::span<float> values = std::span(x).subspan(keys);
    MergeValues(std::span(x).first(keys), keep, values);
    StoreFloats(spec_.dtype, values.data(), values.size(),
                all.data() + keys * DTypeBytes(spec_.dtype));
    std::vector<uint8_t> out;
    for (const Part part : {Part::kK, Part::kV}) {
      const size_t at = part == Part::kK ? 0 : keys * DTypeBytes(spec_.dtype);
      for (const uint32_t t : kept) {
        const auto from = std::span(all).subspan(at + t * VectorBytes(part), VectorBytes(part));
        out.insert(out.end(), from.begin(), from.end());
      }
    }
    return out;
  }

  absl::Status DecodeHead(const Run& run, const Selection& kept, const std::vector<Parts>& parts,
                          uint32_t layer, uint32_t head, uint32_t out_layer,
                          std::span<uint8_t> raw) const {
    const std::vector<uint32_t> tokens = KeptOf(kept, layer, head);
    if (tokens.empty()) return absl::OkStatus();
    std::vector<SharedBytes> bodies;
    for (const Parts& level : parts) {
      bodies.push_back(SharedBytes::CopyOf(level.bytes[size_t{layer} * spec_.kv_heads + head]));
    }
    std::vector<uint8_t> values(tokens.size() * (VectorBytes(Part::kK) + VectorBytes(Part::kV)));
    KVSTOW_RETURN_IF_ERROR(
        head_codec_->Decode(HeadRun(run, tokens.size()), bodies, {0, 1}, values));
    const uint8_t* from = values.data();
    for (const Part part : {Part::kK, Part::kV}) {
      for (const uint32_t t : tokens) {
        std::memcpy(raw.data() + VectorAt(part, out_layer, head, run.tokens, t), from,
                    VectorBytes(part));
        from += VectorBytes(part);
      }
    }
    return absl::OkStatus();
  }

  // Adds the gains of a head's levels. They are relative to the kept tokens, so they are weighed by
  // the head's share of the slabs' energy (the mean of K's and V's). Dropped tokens count as error.
  absl::Status AddGains(const Run& run, std::span<const uint8_t> raw, uint32_t layer, uint32_t head,
                        std::span<const uint8_t> kept, size_t count,
                        const std::vector<EncodedLevel>& levels, std::vector<double>& gains) const {
    double share = 0, parts = 0;
    size_t at = 0;
    for (const Part part : {Part::kK, Part::kV}) {
      if (VectorBytes(part) == 0) continue;
      const size_t bytes = count * VectorBytes(part);
      const size_t slab = run.tokens * spec_.kv_heads * VectorBytes(part);
      const double all = Energy(raw.subspan(SlabOffset(spec_, layer, part, run.tokens), slab));
      share += all > 0 ? Energy(kept.subspan(at, bytes)) / all : 1.0 / spec_.kv_heads;
      parts += 1;
      at += bytes;
    }
    const double weight = share / parts * run.tokens / static_cast<double>(count);
    if (!std::isfinite(weight)) {
      return absl::OutOfRangeError(absl::StrCat("head ", head, " has NaN or Inf"));
    }
    for (size_t level = 0; level < levels.size(); ++level) {
      gains[level] += levels[level].gain * weight;
    }
    return absl::OkStatus();
  }

  double Energy(std::span<const uint8_t> raw) const {
    std::vector<float> values(raw.size() / DTypeBytes(spec_.dtype));
    LoadFloats(spec_.dtype, raw.data(), values.size(), values.data());
    return SquaredSum(values.data(), values.size());
  }

  const KvSpec spec_;
  const std::unique_ptr<const RunCodec> head_codec_;
};

}  // namespace

std::unique_ptr<const RunCodec> MakeSparseRunCodec(const KvSpec& spec,
                                                   std::unique_ptr<const RunCodec> head_codec) {
  return std::make_unique<SparseRunCodec>(spec, std::move(head_codec));
}

}  // namespace kvstow
