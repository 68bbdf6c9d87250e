#include "tests/kernels/device/emulated_joint.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/joint/find_tokens.cuh"
#include "kernels/cuda/joint/foretold_attention.cuh"
#include "kernels/cuda/joint/joint_quantize.cuh"
#include "kernels/cuda/joint/page_tables.cuh"
#include "kernels/cuda/joint/plane_decode.cuh"
#include "kernels/cuda/joint/plane_encode.cuh"
#include "kernels/cuda/joint/plane_order.cuh"
#include "kernels/device/host_buffer.h"
#include "kernels/transform/dense_product.h"

namespace kvstow::testing {
namespace {

using gpu::AskLaunch;
using gpu::JointLaunch;
using gpu::TokenLaunch;

void Multiply(const gpu::JointProduct& p) {
  const size_t from = gpu::PaddedWidth(p.from), to = gpu::PaddedWidth(p.to);
  PackedMatrix m(p.from, p.to);
  std::vector<float> row(p.to);
  for (size_t i = 0; i < p.from; ++i) {
    for (size_t j = 0; j < p.to; ++j) row[j] = Bf16ToFloat(p.m[i * to + j]);
    m.SetRow(i, row);
  }
  std::vector<float> x(p.rows * p.from);
  for (size_t t = 0; t < p.rows; ++t) {
    for (size_t i = 0; i < p.from; ++i) x[t * p.from + i] = Bf16ToFloat(p.x[t * from + i]);
  }
  std::vector<float> y(p.rows * to);
  MultiplyRows(x.data(), p.rows, m, {0, p.to}, y.data(), to);
  for (size_t i = 0; i < y.size(); ++i) p.y[i] = p.adds ? p.y[i] + y[i] : y[i];
}

void Foretell(const JointLaunch& run, bool encoding) {
  if (run.coded() > 0 && run.token_width > 0) Multiply(gpu::TokenProductOf(run, encoding));
}

class Engine final : public JointEngine {
 public:
  Engine(ThreadOrder order, size_t shared_bytes) : order_(order), shared_bytes_(shared_bytes) {}

  uint8_t* AddressOf(const DeviceBuffer& buffer) const override {
    const auto* host = dynamic_cast<const HostBuffer*>(&buffer);
    return host == nullptr ? nullptr : const_cast<uint8_t*>(host->bytes().data());
  }
  size_t shared_bytes() const override { return shared_bytes_; }
  absl::Status Encode(const TokenLaunch& tokens, std::span<const AskLaunch> asks,
                      std::span<const JointLaunch> runs,
                      const gpu::PlaneEncodeLaunch& planes) override {
    std::fill_n(planes.answer, planes.answer_bytes, uint8_t{0});
    gpu::LookAtTokens(tokens, [&](const auto& step) { RunStep(order_, tokens, step); });
    for (const AskLaunch& ask : asks)
      gpu::Ask(ask, [&](const auto& step) { RunStep(order_, ask, step); });
    for (const JointLaunch& run : runs) {
      const auto start = [&](const auto& step) { RunStep(order_, run, step); };
      Foretell(run, true);
      gpu::BeforeEncoding(run, start);
      if (run.coded() > 0) Multiply(gpu::ProductOf(run, true));
      gpu::AfterEncoding(run, start);
    }
    if (planes.streams == 0) return absl::OkStatus();
    RunStep(order_, planes, gpu::OrderTokens());
    if (planes.adapts) RunStep(order_, planes, gpu::FitTables());
    RunStep(order_, planes, gpu::ChooseTables());
    RunStep(order_, planes, gpu::SumGains());
    RunStep(order_, planes, gpu::EncodePlanes());
    return absl::OkStatus();
  }
  absl::Status Move(const gpu::WordsLaunch& launch) override {
    RunStep(order_, launch, gpu::MoveWords());
    return absl::OkStatus();
  }
  absl::Status Decode(const gpu::PlaneDecodeLaunch& planes, const TokenLaunch& tokens,
                      std::span<const JointLaunch> runs) override {
    if (planes.streams > 0) RunStep(order_, planes, gpu::DecodePlanes());
    gpu::LookAtTokens(tokens, [&](const auto& step) { RunStep(order_, tokens, step); });
    for (const JointLaunch& run : runs) {
      if (run.coded() > 0) Multiply(gpu::ProductOf(run, false));
      Foretell(run, false);
      gpu::AfterDecoding(run, [&](const auto& step) { RunStep(order_, run, step); });
    }
    return absl::OkStatus();
  }

 private:
  const ThreadOrder order_;
  const size_t shared_bytes_;
};

}  // namespace

std::unique_ptr<JointEngine> EmulatedJoint(ThreadOrder order, size_t shared_bytes) {
  return std::make_unique<Engine>(order, shared_bytes);
}

}  // namespace kvstow::testing
