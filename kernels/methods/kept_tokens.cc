#include "kernels/methods/kept_tokens.h"

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace kvstow {
namespace {

size_t BitmapBytes(uint32_t tokens) { return (size_t{tokens} + 7) / 8; }
// A list of positions where that is shorter than a bit for each token.
bool IsList(size_t kept, uint32_t tokens) { return kept * 2 < BitmapBytes(tokens); }
size_t MaskBytes(size_t kept, uint32_t tokens) {
  return IsList(kept, tokens) ? kept * 2 : BitmapBytes(tokens);
}

void PutMask(const std::vector<uint32_t>& kept, uint32_t tokens, ByteWriter& out) {
  if (IsList(kept.size(), tokens)) {
    for (const uint32_t t : kept) out.Put(static_cast<uint16_t>(t));
    return;
  }
  std::vector<uint8_t> bits(BitmapBytes(tokens));
  for (const uint32_t t : kept) bits[t / 8] |= static_cast<uint8_t>(1U << t % 8);
  out.PutBytes(bits);
}

}  // namespace

std::vector<uint32_t> KeptOf(const Selection& kept, uint32_t layer, uint32_t head) {
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t < kept.tokens; ++t) {
    if (kept.Kept(layer, t, head)) out.push_back(t);
  }
  return out;
}

void WriteKept(const Selection& kept, LayerRange layers, ByteWriter& out) {
  ByteWriter masks;
  for (uint32_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    for (uint32_t head = 0; head < kept.heads; ++head) {
      const std::vector<uint32_t> tokens = KeptOf(kept, layer, head);
      out.Put(static_cast<uint16_t>(tokens.size()));
      PutMask(tokens, kept.tokens, masks);
    }
  }
  out.PutBytes(AsBytes(masks.bytes()));
}

size_t KeptBytes(const Selection& kept) {
  size_t bytes = size_t{kept.layers} * kept.heads * sizeof(uint16_t);
  for (uint32_t l = 0; l < kept.layers; ++l) {
    for (uint32_t h = 0; h < kept.heads; ++h) {
      bytes += MaskBytes(KeptOf(kept, l, h).size(), kept.tokens);
    }
  }
  return bytes;
}

absl::StatusOr<Selection> ReadKept(std::span<const uint8_t> bytes, uint32_t layers, uint32_t tokens,
                                   uint32_t heads) {
  Selection out{layers, tokens, heads, {}};
  const size_t lists = size_t{layers} * heads;
  ByteReader in(bytes);
  ByteReader counts(in.GetBytes(lists * sizeof(uint16_t)));
  if (!in.ok()) return absl::DataLossError("kept tokens end within their counts");
  out.keep.resize(lists * tokens);
  for (size_t list = 0; list < lists; ++list) {
    const size_t count = counts.Get<uint16_t>();
    const auto mask =
        count > tokens ? std::span<const uint8_t>() : in.GetBytes(MaskBytes(count, tokens));
    size_t found = 0, next = 0;  // positions ascend
    const auto take = [&](size_t token) {
      if (token < next || token >= tokens) return;
      out.keep[(list / heads * tokens + token) * heads + list % heads] = 1;
      next = token + 1;
      ++found;
    };
    if (IsList(count, tokens)) {
      ByteReader positions(mask);
      for (size_t i = 0; i < count; ++i) take(positions.Get<uint16_t>());
    } else {
      for (size_t t = 0; t < mask.size() * 8; ++t) {
        if (mask[t / 8] >> t % 8 & 1) take(t);
      }
    }
    if (!in.ok() || found != count) {
      return absl::DataLossError(
          absl::StrCat("list ", list, " of kept tokens does not hold ", count, " positions"));
    }
  }
  return out;
}

}  // namespace kvstow
