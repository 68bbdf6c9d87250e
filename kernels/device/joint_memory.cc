#include "kernels/device/joint_memory.h"

#include <algorithm>
#include <cstring>

#include "kernels/page/half.h"
#include "kernels/transform/transpose.h"

namespace kvstow::gpu {

std::vector<uint16_t> Bf16Rows(const PackedMatrix& m, size_t rows, size_t columns) {
  const size_t stride = PaddedWidth(columns);
  std::vector<uint16_t> out(rows * stride);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      const float value = m.PanelRow(j / PackedMatrix::kPanel, i)[j % PackedMatrix::kPanel];
      out[i * stride + j] = FloatToBf16(value);
    }
  }
  return out;
}

JointAnswer::JointAnswer(const JointLaunch& launch, size_t head_bytes) {
  Places places;
  const size_t values = size_t{launch.rows()} * launch.rank;
  refused = places.Take(launch.pages * sizeof(uint32_t));
  head = places.Take(launch.pages * head_bytes);
  energies = places.Take(launch.rows());
  classes = places.Take(launch.rows());
  q = places.Take(values * sizeof(int16_t));
  sample = places.Take(size_t{launch.pages} * launch.sampled * launch.rank * sizeof(float));
  bytes = places.size();
}

void JointAnswer::Place(uint8_t* at, JointLaunch& launch) const {
  launch.answer = at, launch.answer_bytes = bytes;
  launch.head = at + head, launch.energies = at + energies, launch.classes = at + classes;
  launch.q = reinterpret_cast<int16_t*>(at + q);
  launch.sample = reinterpret_cast<float*>(at + sample);
  launch.refused = reinterpret_cast<uint32_t*>(at + refused);
}

QuantizedRun QuantizedOf(const JointLaunch& launch, const JointAnswer& answer, const uint8_t* bytes,
                         uint32_t page) {
  QuantizedRun out{.tokens = launch.coded()};
  const size_t rank = launch.rank, n = launch.coded(), stride = PlaneStride(n);
  const size_t row = size_t{page} * n;
  out.q.resize(rank * stride);
  out.energies.assign(stride, kPlaneEnergies / 2);
  out.sample.resize(rank * launch.sampled);
  if (n == 0) return out;  // first tokens are all that the page has
  std::copy_n(bytes + answer.energies + row, n, out.energies.begin());
  if (launch.weights != nullptr) {
    out.classes.assign(bytes + answer.classes + row, bytes + answer.classes + row + n);
  }
  std::vector<int16_t> q(n * rank);
  std::memcpy(q.data(), bytes + answer.q + row * rank * sizeof(int16_t), q.size() * 2);
  for (size_t t = 0; t < n; ++t) {
    for (size_t i = 0; i < rank; ++i) out.q[i * stride + t] = q[t * rank + i];
  }
  std::vector<float> sample(launch.sampled * rank);
  const size_t kept = SampledTokens(launch.coded());
  std::memcpy(sample.data(), bytes + answer.sample + page * sample.size() * sizeof(float),
              kept * rank * sizeof(float));
  Transpose(sample.data(), launch.sampled, rank, rank, out.sample.data(), launch.sampled);
  return out;
}

}  // namespace kvstow::gpu
