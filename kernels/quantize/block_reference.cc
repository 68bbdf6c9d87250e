// One value after another: what the fast loops must equal.
#include "kernels/quantize/block_scales.h"
#include "kernels/quantize/loops.h"

namespace kvstow {
namespace {

// Codes of a block between values and bytes; Load returns false when a code is NaN.
struct Q8 : Q8Format {
  static void Store(const float* x, float inverse, uint8_t* codes) {
    for (size_t i = 0; i < kValues; ++i) {
      codes[i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
    }
  }
  static bool Load(const uint8_t* codes, float d, float* x) {
    for (size_t i = 0; i < kValues; ++i) {
      x[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * d;
    }
    return true;
  }
};

struct Q4 : Q4Format {
  static void Store(const float* x, float inverse, uint8_t* codes) {
    const auto code = [&](float value) {
      return static_cast<uint8_t>(std::min(15, static_cast<int>(value * inverse + 8.5f)));
    };
    for (size_t i = 0; i < 16; ++i) {
      codes[i] = static_cast<uint8_t>(code(x[i]) | code(x[i + 16]) << 4);
    }
  }
  static bool Load(const uint8_t* codes, float d, float* x) {
    for (size_t i = 0; i < 16; ++i) {
      x[i] = static_cast<float>((codes[i] & 15) - 8) * d;
      x[i + 16] = static_cast<float>((codes[i] >> 4) - 8) * d;
    }
    return true;
  }
};

template <class Format>
struct E2M1 : Format {
  static void Store(const float* x, float factor, uint8_t* codes) {
    for (size_t i = 0; i < Format::kValues; i += 2) {
      *codes++ =
          static_cast<uint8_t>(FloatToE2M1(x[i] * factor) | FloatToE2M1(x[i + 1] * factor) << 4);
    }
  }
  static bool Load(const uint8_t* codes, float scale, float* x) {
    for (size_t i = 0; i < Format::kValues; i += 2, ++codes) {
      x[i] = E2M1ToFloat(*codes & 15) * scale;
      x[i + 1] = E2M1ToFloat(*codes >> 4) * scale;
    }
    return true;
  }
};

struct Mx8 : Mx8Format {
  static void Store(const float* x, float factor, uint8_t* codes) {
    for (size_t i = 0; i < kValues; ++i) codes[i] = FloatToE4M3(x[i] * factor);
  }
  static bool Load(const uint8_t* codes, float scale, float* x) {
    bool ok = true;
    for (size_t i = 0; i < kValues; ++i) {
      ok &= (codes[i] & 0x7f) != 0x7f;
      x[i] = E4M3ToFloat(codes[i]) * scale;
    }
    return ok;
  }
};

template <class Codes>
void Encode(const float* x, size_t count, float tensor, uint8_t* block) {
  for (; count > 0; --count, x += Codes::kValues, block += Codes::kBytes) {
    const float factor = Codes::Put(x[LargestAt(x, Codes::kValues)], tensor, block);
    Codes::Store(x, factor, block + Codes::kScaleBytes);
  }
}

template <class Codes>
bool Decode(const uint8_t* block, size_t count, float tensor, float* x) {
  bool ok = true;
  for (; count > 0; --count, x += Codes::kValues, block += Codes::kBytes) {
    float scale = 0;
    ok &= Codes::Get(block, tensor, &scale);
    ok &= Codes::Load(block + Codes::kScaleBytes, scale, x);
  }
  return ok;
}

void EncodeFormat(BlockFormat format, const float* values, size_t count, float tensor,
                  uint8_t* blocks) {
  constexpr decltype(&Encode<Q8>) kEncode[] = {Encode<Q8>, Encode<Q4>, Encode<E2M1<Nv4Format>>,
                                               Encode<E2M1<Mx4Format>>, Encode<Mx8>};
  kEncode[static_cast<size_t>(format)](values, count, tensor, blocks);
}

bool DecodeFormat(BlockFormat format, const uint8_t* blocks, size_t count, float tensor,
                  float* values) {
  constexpr decltype(&Decode<Q8>) kDecode[] = {Decode<Q8>, Decode<Q4>, Decode<E2M1<Nv4Format>>,
                                               Decode<E2M1<Mx4Format>>, Decode<Mx8>};
  return kDecode[static_cast<size_t>(format)](blocks, count, tensor, values);
}

}  // namespace

const BlockLoops& BlockLoops::Reference() {
  static constexpr BlockLoops kLoops{EncodeFormat, DecodeFormat};
  return kLoops;
}

}  // namespace kvstow
