#include "kernels/calibration/calibration_fields.h"

#include <algorithm>
#include <cmath>

namespace kvstow {
namespace {

template <typename T>
void PutAll(std::span<const T> values, ByteWriter& out) {
  out.PutBytes({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
}

}  // namespace

void PutFloats(std::span<const float> values, ByteWriter& out) { PutAll(values, out); }

void PutHalves(std::span<const uint16_t> values, ByteWriter& out) { PutAll(values, out); }

bool ReadFloats(ByteReader& in, size_t count, std::vector<float>& out, float least) {
  const auto bytes = in.GetBytes(count * sizeof(float));
  if (bytes.size() != count * sizeof(float)) return false;
  out.resize(count);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(out.data()));
  return std::all_of(out.begin(), out.end(),
                     [&](float x) { return std::isfinite(x) && x >= least; });
}

}  // namespace kvstow
