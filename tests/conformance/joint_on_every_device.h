// What the suites of calibrated pages on every device share: specs, pages, and a call of the codec.
#ifndef KVSTOW_TESTS_CONFORMANCE_JOINT_ON_EVERY_DEVICE_H_
#define KVSTOW_TESTS_CONFORMANCE_JOINT_ON_EVERY_DEVICE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_joint_codec.h"
#include "tests/conformance/device_factory.h"
#include "tests/kernels/correlated_pages.h"

namespace kvstow::testing {

class JointOnEveryDevice : public OnEveryDevice {
 protected:
  // BF16, interleaved RoPE in a part of the channels.
  static KvSpec Bf16Spec() {
    KvSpec spec = CorrelatedSpec(2, 24, 16);
    spec.dtype = DType::kBF16;
    spec.rope.layout = RopeSpec::Layout::kInterleaved;
    spec.rope.rotary_dims = 12;
    return spec;
  }
  // F32, RoPE that is scaled.
  static KvSpec F32Spec() {
    KvSpec spec = CorrelatedSpec(2, 10, 6);
    spec.dtype = DType::kF32;
    spec.rope.scaling = RopeSpec::Scaling::kYarn;
    spec.rope.factor = 4;
    spec.rope.original_context = 512;
    spec.rope.low_freq_factor = 1;
    spec.rope.high_freq_factor = 32;
    return spec;
  }

  // A model with calibrations of runs of one layer and of two. The latter have step classes.
  struct RunsOfModel {
    const char* name;
    KvSpec spec;
    CalibrationStore store;
  };
  // fit(spec, layers a run, with sensitivities or not) makes a calibration.
  template <typename Fit>
  static std::unique_ptr<RunsOfModel> FitRuns(const char* name, const KvSpec& spec,
                                              const Fit& fit) {
    auto model = std::make_unique<RunsOfModel>();
    model->name = name, model->spec = spec;
    for (const uint32_t run : {1, 2}) {
      const auto blob = fit(spec, run, run == 2);
      EXPECT_TRUE(blob.ok()) << blob.status();
      EXPECT_TRUE(blob.ok() && model->store.Add(AsBytes(*blob)).ok());
    }
    return model;
  }

  struct PageIn {
    uint32_t tokens;
    uint64_t first_position;
    std::vector<uint8_t> raw;
  };
  // Pages of these tokens and first positions, each from a seed of its own.
  static std::vector<PageIn> PagesOf(const KvSpec& spec,
                                     std::span<const std::pair<uint32_t, uint64_t>> shapes,
                                     uint64_t seed) {
    std::vector<PageIn> pages;
    for (const auto& [tokens, first] : shapes) {
      pages.push_back({tokens, first, CorrelatedPage(spec, tokens, seed + pages.size(), first)});
    }
    return pages;
  }

  std::unique_ptr<DeviceJointCodec> Make(const KvSpec& spec, const CalibrationStore& store,
                                         const std::string& recipe) {
    auto codec = MakeDeviceJointCodec(*device_, *ParseRecipe(recipe), spec, store);
    EXPECT_TRUE(codec.ok()) << codec.status();
    return codec.ok() ? *std::move(codec) : nullptr;
  }
  std::vector<JointPage> Encode(DeviceJointCodec& codec, const std::vector<PageIn>& pages) {
    std::vector<std::shared_ptr<const DeviceBuffer>> buffers;
    std::vector<JointEncodeJob> jobs;
    for (const PageIn& page : pages) {
      buffers.push_back(Put(page.raw));
      jobs.push_back({page.tokens, page.first_position, buffers.back().get()});
    }
    auto coded = codec.Encode(jobs);
    EXPECT_TRUE(coded.ok()) << coded.status();
    return *std::move(coded);
  }

  std::vector<uint8_t> Decode(DeviceJointCodec& codec, const PageIn& page,
                              std::span<const SharedBytes> bodies,
                              std::span<const TokenId> ids = {}) {
    const auto room = Room(page.raw.size());
    const JointDecodeJob job{page.tokens, page.first_position, bodies, room.get(), ids};
    const absl::Status status = codec.Decode({&job, 1});
    EXPECT_TRUE(status.ok()) << status;
    return Get(room);
  }

  // What the CPU's codec makes of a page, and what it decodes.
  static EncodedPage OfTheCpu(const KvSpec& spec, const CalibrationStore& store,
                              const Recipe& recipe, const PageIn& page) {
    const auto codec = *MakeCodec(recipe, spec, store);
    return *codec->Encode(
        {.raw = page.raw, .tokens = page.tokens, .first_position = page.first_position});
  }
  static std::vector<uint8_t> DecodeOnTheCpu(const CalibrationStore& store,
                                             const PageHeader& header,
                                             std::span<const SharedBytes> bodies,
                                             const PageIn& page) {
    std::vector<uint8_t> out(page.raw.size());
    const absl::Status status = DecodePage(header, bodies, out, store);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_JOINT_ON_EVERY_DEVICE_H_
