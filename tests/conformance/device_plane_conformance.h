// The streams of the plane coder on every device that has calibrated pages: the bytes of the CPU's
// coder, its coefficients, and its word on what is damaged.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_PLANE_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_PLANE_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/joint_memory.h"
#include "kernels/device/plane_batch.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/methods/joint_sampling.h"
#include "kernels/page/half.h"
#include "tests/conformance/device_factory.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

class DevicePlaneConformance : public OnEveryDevice {
 protected:
  // Coefficients of one body, and the coder of the CPU.
  struct Case {
    std::string name;
    uint32_t rank, tokens, levels, each;
    std::vector<int16_t> rows;
    std::vector<int8_t> tilts;
    std::vector<int32_t> q;  // [rank, stride]
    std::vector<uint8_t> energies;

    size_t stride() const { return PlaneStride(tokens); }
    PlaneCoder Coder() const {
      return PlaneCoder({.rows = rows,
                         .classed = true,
                         .tilts = tilts,
                         .levels = levels,
                         .tokens_per_stream = each},
                        UniversalPlaneTables(), PlaneLookups::Universal());
    }
    std::vector<std::string> Bodies() const {
      const std::vector<int32_t> in_places = InOrder<int32_t>(OrderByClass(energies, each), q);
      return Coder().Encode(in_places, energies, tokens);
    }
  };
  // Spreads from far below a step to beyond the highest row, so that there are raw bits, escapes
  // and streams of hardly any words. `tilted`: signs of one kind.
  static Case Make(uint32_t rank, uint32_t tokens, uint32_t levels, uint32_t each, bool tilted,
                   float finest = 1) {
    Case out{.name = absl::StrCat(rank, " x ", tokens, ", levels ", levels, ", stream ", each),
             .rank = rank,
             .tokens = tokens,
             .levels = levels,
             .each = each};
    Gaussian random(rank + 1000 * tokens + 7 * levels);
    out.q.resize(rank * out.stride());
    for (uint32_t t = 0; t < tokens; ++t)
      out.energies.push_back(static_cast<uint8_t>(
          std::clamp(8 + static_cast<int>(std::lround(1.5f * random())), 0, kPlaneEnergies - 1)));
    for (uint32_t i = 0; i < rank; ++i) {
      const float spread = finest * std::exp2(4 + 4 * random());  // in finest steps
      const float row = kPlaneUnitRow + 4 * std::log2(std::ldexp(spread, 1 - int(levels)));
      out.rows.push_back(static_cast<int16_t>(std::lround(row)));
      if (tilted) out.tilts.push_back(static_cast<int8_t>(i % 25) - kMaxPlaneTilt);
      for (uint32_t t = 0; t < tokens; ++t) {
        // A few tokens are far out, which is what escapes are for.
        const float far = t % 37 == 5 ? 30 : 1;
        const float value = spread * far * random() + (tilted ? 0.5f * out.tilts[i] : 0);
        const auto magnitude = static_cast<int32_t>(std::min(std::abs(value), 32766.0f));
        out.q[i * out.stride() + t] = value < 0 ? -magnitude : magnitude;
      }
    }
    return out;
  }
  static std::vector<Case> Cases(bool tilted) {
    return {Make(1, 1, 1, 16, tilted),         Make(3, 16, 2, 16, tilted),
            Make(9, 40, 4, 32, tilted),        Make(24, 256, 4, 256, tilted),
            Make(17, 100, 8, 64, tilted),      Make(40, 300, 3, 128, tilted),
            Make(8, 64, 4, 64, tilted, 1e-3f), Make(33, 48, 4, 16, tilted, 1e-2f)};
  }

  std::unique_ptr<JointEngine> Engine() { return *device_->kernels().NewJointEngine(); }
  template <typename T>
  std::shared_ptr<const DeviceBuffer> Send(const std::vector<T>& values) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    return Put({bytes, bytes + values.size() * sizeof(T)});
  }
  template <typename T>
  static T* At(const JointEngine& engine, const DeviceBuffer& buffer, size_t bytes = 0) {
    return reinterpret_cast<T*>(engine.AddressOf(buffer) + bytes);
  }

  // Encodes on the device, without tables of the body's own.
  std::vector<std::string> Encode(const Case& of);
  // The bodies of all levels from what the device left in the rooms of the streams.
  static std::vector<std::string> BodiesOf(const Case& of,
                                           std::span<const gpu::PlaneEncodeJob> jobs,
                                           std::span<const uint32_t> counts,
                                           const std::vector<uint8_t>& words);
  // Decodes leading levels on the device: [tokens, rank]. Nothing where it finds damage.
  std::optional<std::vector<uint16_t>> Decode(const Case& of, std::span<const std::string> bodies,
                                              std::span<const float> factors = {});
  // The same by the CPU's coder.
  static std::optional<std::vector<uint16_t>> DecodeOnTheCpu(const Case& of,
                                                             std::span<const std::string> bodies,
                                                             std::span<const float> factors = {});
};

inline std::vector<std::string> DevicePlaneConformance::Encode(const Case& of) {
  const auto engine = Engine();
  const uint32_t stride = gpu::PaddedWidth(of.rank);
  std::vector<int16_t> q(of.tokens * stride);
  for (uint32_t t = 0; t < of.tokens; ++t) {
    for (uint32_t i = 0; i < of.rank; ++i)
      q[t * stride + i] = static_cast<int16_t>(of.q[i * of.stride() + t]);
  }
  std::vector<gpu::PlaneEncodeJob> jobs;
  size_t room = 0;
  for (uint32_t first = 0; first < of.tokens; first += of.each) {
    const uint32_t tokens = std::min(of.each, of.tokens - first);
    jobs.push_back({.first = first, .tokens = tokens, .words_at = room});
    room += gpu::RoomBefore(of.rank, tokens, of.levels);
  }
  const auto table = Send(std::vector{gpu::MakePlaneTable(UniversalPlaneTables(), of.levels)});
  const auto bodies =
      Send(std::vector{gpu::PlaneBody{.tokens = of.tokens, .rank = of.rank, .stride = stride}});
  const auto sent_jobs = Send(jobs), rows = Send(of.rows), magnitudes = Send(q);
  const auto energies = Send(of.energies);
  const auto order = Room(4 * of.tokens), shifts = Room(of.tokens);
  const auto sample = Send(std::vector<float>(of.rank * SampledTokens(of.tokens) + 1));
  gpu::Places places;
  const size_t refused = places.Take(4), counts = places.Take(4 * jobs.size() * of.levels);
  const size_t sums = places.Take(8 * gpu::GainBlocks(of.rank) * (of.levels + 1));
  const size_t lists = places.Take(2 * of.rank), spreads = places.Take(2);
  const auto answer = Room(places.size()), words = Room(2 * room), own_rows = Room(2 * of.rank);

  gpu::PlaneEncodeLaunch launch;
  launch.body_count = 1, launch.streams = static_cast<uint32_t>(jobs.size());
  launch.most_tokens = static_cast<uint32_t>(PlaneStride(std::min(of.each, of.tokens)));
  launch.most_rank = of.rank, launch.levels = of.levels, launch.step = 1;
  launch.table = At<gpu::PlaneTable>(*engine, *table);
  launch.bodies = At<gpu::PlaneBody>(*engine, *bodies);
  launch.jobs = At<gpu::PlaneEncodeJob>(*engine, *sent_jobs);
  launch.base_rows = At<int16_t>(*engine, *rows), launch.q = At<int16_t>(*engine, *magnitudes);
  launch.energies = At<uint8_t>(*engine, *energies), launch.sample = At<float>(*engine, *sample);
  launch.order = At<uint32_t>(*engine, *order), launch.shifts = At<int8_t>(*engine, *shifts);
  launch.moves = At<int8_t>(*engine, *answer, lists), launch.tilts = launch.moves + of.rank;
  launch.rows = At<int16_t>(*engine, *own_rows), launch.words = At<uint16_t>(*engine, *words);
  launch.answer = At<uint8_t>(*engine, *answer), launch.answer_bytes = places.size();
  launch.spreads = launch.answer + spreads, launch.sums = At<double>(*engine, *answer, sums);
  launch.counts = At<uint32_t>(*engine, *answer, counts);
  launch.refused = At<uint32_t>(*engine, *answer, refused);
  EXPECT_TRUE(engine->Encode({}, {}, {}, launch).ok());

  const std::vector<uint8_t> answers = Get(answer);
  EXPECT_EQ(answers[refused], 0);
  std::vector<uint32_t> of_streams(jobs.size() * of.levels);
  std::memcpy(of_streams.data(), answers.data() + counts, 4 * of_streams.size());
  return BodiesOf(of, jobs, of_streams, Get(words));
}

inline std::vector<std::string> DevicePlaneConformance::BodiesOf(
    const Case& of, std::span<const gpu::PlaneEncodeJob> jobs, std::span<const uint32_t> counts,
    const std::vector<uint8_t>& words) {
  std::vector<std::string> out;
  for (uint32_t level = 0; level < of.levels; ++level) {
    std::vector<uint32_t> lengths;
    std::string streams;
    for (size_t s = 0; s < jobs.size(); ++s) {
      lengths.push_back(counts[s * of.levels + level]);
      const size_t end = jobs[s].words_at + gpu::RoomBefore(of.rank, jobs[s].tokens, level + 1);
      streams.append(reinterpret_cast<const char*>(words.data()) + 2 * (end - lengths.back()),
                     2 * lengths.back());
    }
    out.push_back(StreamLengths(lengths, /*classed=*/true) + streams);
  }
  return out;
}

inline std::optional<std::vector<uint16_t>> DevicePlaneConformance::Decode(
    const Case& of, std::span<const std::string> bodies, std::span<const float> factors) {
  const auto engine = Engine();
  const uint32_t stride = gpu::PaddedWidth(of.rank);
  std::vector<std::span<const uint8_t>> planes;
  for (const std::string& body : bodies) planes.push_back(AsBytes(body));
  gpu::PlaneBatch batch;
  if (!batch
           .Add({.rank = of.rank, .stride = stride}, of.tokens, of.each,
                {of.rows, of.tilts, factors}, planes)
           .ok()) {
    return std::nullopt;
  }
  const auto sent = batch.Send(*device_);
  EXPECT_TRUE(sent.ok()) << sent.status();
  const auto table = Send(std::vector{gpu::MakePlaneTable(UniversalPlaneTables(), of.levels)});
  const auto refused = Send(std::vector<uint32_t>(1));
  const auto out = Room(2 * of.tokens * stride);
  gpu::PlaneDecodeLaunch launch;
  sent->Place(engine->AddressOf(*sent->buffer), launch);
  launch.streams = batch.streams(), launch.levels = of.levels;
  launch.most_tokens = static_cast<uint32_t>(PlaneStride(std::min(of.each, of.tokens)));
  launch.decoded = static_cast<uint32_t>(bodies.size());
  launch.step = std::ldexp(1.0f, static_cast<int>(of.levels - launch.decoded));
  launch.table = At<gpu::PlaneTable>(*engine, *table);
  launch.coefficients = At<uint16_t>(*engine, *out);
  launch.refused = At<uint32_t>(*engine, *refused);
  EXPECT_TRUE(engine->Decode(launch, {}, {}).ok());
  if (Get(refused)[0] != 0) return std::nullopt;
  const std::vector<uint8_t> bytes = Get(out);
  std::vector<uint16_t> values;
  for (uint32_t t = 0; t < of.tokens; ++t) {
    const size_t at = values.size();
    values.resize(at + of.rank);
    std::memcpy(values.data() + at, bytes.data() + size_t{2} * t * stride, 2 * of.rank);
  }
  return values;
}

inline std::optional<std::vector<uint16_t>> DevicePlaneConformance::DecodeOnTheCpu(
    const Case& of, std::span<const std::string> bodies, std::span<const float> factors) {
  std::vector<std::span<const uint8_t>> planes;
  for (const std::string& body : bodies) planes.push_back(AsBytes(body));
  const PlaneCoder coder = of.Coder();
  std::vector<int32_t> q(of.rank * of.stride());
  std::vector<uint8_t> energies(of.tokens);
  if (!coder.Decode(planes, of.tokens, {0, of.tokens}, q, energies).ok()) return std::nullopt;
  std::vector<float> values(q.size());
  const auto level = static_cast<uint32_t>(bodies.size() - 1);
  const float step = std::ldexp(1.0f, static_cast<int>(of.levels - 1 - level));
  const PlaneOrder order = OrderByClass(energies, of.each);
  coder.Dequantize(q, order.shifts, of.tokens, level, {&step, 1}, values);
  std::vector<uint16_t> out(of.tokens * of.rank);
  for (uint32_t p = 0; p < of.tokens; ++p) {
    const uint32_t t = order.tokens[p];
    const float factor = factors.empty() ? 1 : factors[t];
    for (uint32_t i = 0; i < of.rank; ++i)
      out[t * of.rank + i] = FloatToBf16(values[i * of.stride() + p] * factor);
  }
  return out;
}

TEST_P(DevicePlaneConformance, BytesAreTheCpus) {
  for (const Case& of : Cases(false)) {
    SCOPED_TRACE(of.name);
    const std::vector<std::string> ours = Encode(of), theirs = of.Bodies();
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t level = 0; level < ours.size(); ++level)
      EXPECT_EQ(ours[level], theirs[level]) << "level " << level;
  }
}

TEST_P(DevicePlaneConformance, LeadingLevelsAreTheCpusCoefficients) {
  for (const bool tilted : {false, true}) {
    for (const Case& of : Cases(tilted)) {
      SCOPED_TRACE(absl::StrCat(of.name, tilted ? ", tilted" : ""));
      const std::vector<std::string> bodies = of.Bodies();
      std::vector<float> factors;
      for (uint32_t t = 0; tilted && t < of.tokens; ++t)
        factors.push_back(std::exp2(static_cast<float>(t % 5) - 2));
      for (size_t levels = 1; levels <= bodies.size(); ++levels) {
        const auto leading = std::span(bodies).first(levels);
        const auto ours = Decode(of, leading, factors);
        ASSERT_TRUE(ours.has_value()) << levels << " levels";
        EXPECT_EQ(*ours, *DecodeOnTheCpu(of, leading, factors)) << levels << " levels";
      }
    }
  }
}

// Thread blocks of fewer levels need less shared memory. No call takes any from another's.
TEST_P(DevicePlaneConformance, CallsOfOtherLevelsGoSideBySide) {
  const Case of = Make(24, 256, 4, 256, false);
  const std::vector<std::string> bodies = of.Bodies();
  std::vector<std::thread> threads;
  for (size_t levels = 1; levels <= bodies.size(); ++levels) {
    threads.emplace_back([&, leading = std::span(bodies).first(levels)] {
      const auto theirs = DecodeOnTheCpu(of, leading);
      for (int i = 0; i < 20; ++i) EXPECT_EQ(Decode(of, leading), theirs) << leading.size();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DevicePlaneConformance, WhatIsDamagedToTheCpuIsDamagedHere) {
  size_t damaged = 0;
  for (const Case& of : {Make(9, 40, 4, 32, false), Make(5, 16, 3, 16, true)}) {
    const std::vector<std::string> bodies = of.Bodies();
    uint32_t random = 1;
    for (int i = 0; i < 150; ++i) {
      std::vector<std::string> changed = bodies;
      random = random * 1664525 + 1013904223;
      std::string& body = changed[random % changed.size()];
      body[(random >> 8) % body.size()] ^= static_cast<char>(1 << (random >> 5 & 7));
      const auto theirs = DecodeOnTheCpu(of, changed);
      EXPECT_EQ(Decode(of, changed), theirs) << of.name << ", change " << i;
      damaged += theirs.has_value() ? 0 : 1;
    }
  }
  EXPECT_GT(damaged, 200u);  // of 300: else this tests nothing
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_PLANE_CONFORMANCE_H_
