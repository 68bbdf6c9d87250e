// One value after another: what the fast loops must equal.
#include <algorithm>
#include <cstring>

#include "kernels/page/convert.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

template <typename T>
T Read(const uint8_t* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Write(uint8_t* to, size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

bool LoadFloatsReference(DType dtype, const uint8_t* raw, size_t count, float* out) {
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kF16:
        out[i] = HalfToFloat(Read<uint16_t>(raw, i));
        break;
      case DType::kBF16:
        out[i] = Bf16ToFloat(Read<uint16_t>(raw, i));
        break;
      default:
        out[i] = Read<float>(raw, i);
    }
    finite &= (std::bit_cast<uint32_t>(out[i]) & 0x7f800000) != 0x7f800000;
  }
  return finite;
}

void StoreFloatsReference(DType dtype, const float* values, size_t count, uint8_t* raw) {
  for (size_t i = 0; i < count; ++i) {
    const float x = values[i];
    switch (dtype) {
      case DType::kF16:
        Write(raw, i, FloatToHalf(std::clamp(x, -kMaxHalf, kMaxHalf)));
        break;
      case DType::kBF16:
        Write(raw, i, FloatToBf16(std::clamp(x, -kMaxBf16, kMaxBf16)));
        break;
      default:
        Write(raw, i, x);
    }
  }
}

}  // namespace kvstow
