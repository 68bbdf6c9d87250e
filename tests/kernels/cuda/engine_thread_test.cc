// What our calls leave behind on a thread of an inference engine. Only a GPU can tell.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/codec/parse_recipe.h"
#include "kernels/cuda/primary_context.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/device_sharing.h"
#include "kernels/recipe/recipe.h"

namespace kvstow::testing {
namespace {

class EngineThreadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = OpenCudaDevice(0);
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto sharing = OpenCudaSharing(0);
    ASSERT_TRUE(sharing.ok()) << sharing.status();
    sharing_ = *std::move(sharing);
    ASSERT_EQ(cudaEventCreate(&event_), cudaSuccess);
  }

  // Every kind of call that a worker makes.
  void UseTheGpu() {
    const KvSpec spec{.layers = 2,
                      .kv_heads = 2,
                      .head_dim_k = 64,
                      .head_dim_v = 64,
                      .dtype = DType::kF16,
                      .page_tokens = 16};
    const size_t bytes = PageBytes(spec, 16);
    auto raw = device_->Store(SharedBytes::CopyOf(std::vector<uint8_t>(bytes)));
    ASSERT_TRUE(raw.ok()) << raw.status();
    EXPECT_TRUE(device_->Load(*raw).ok());
    auto codec = device_->kernels().NewCodec(*ParseRecipe("int8"), spec);
    ASSERT_TRUE(codec.ok()) << codec.status();
    auto coded = device_->Allocate((*codec)->CodedBytes(16));
    ASSERT_TRUE(coded.ok()) << coded.status();
    const EncodeJob job{.tokens = 16, .raw = raw->get(), .coded = coded->get()};
    const auto coding = (*codec)->Encode({&job, 1}, true);
    EXPECT_TRUE(coding.ok()) << coding.status();
    auto memory = sharing_->Make(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_TRUE(sharing_->Copy((*memory)->bytes().first(64), (*memory)->bytes().data() + 64).ok());
    const auto passed = sharing_->Passed(event_);
    EXPECT_TRUE(passed.ok()) << passed.status();
  }

  static CUcontext Current() {
    static decltype(&cuCtxGetCurrent) get = nullptr;
    if (get == nullptr) {
      EXPECT_TRUE(FindInDriver("cuCtxGetCurrent", get).ok());
    }
    CUcontext current = nullptr;
    EXPECT_EQ(get(&current), CUDA_SUCCESS);
    return current;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceSharing> sharing_;
  cudaEvent_t event_ = nullptr;
};

TEST_F(EngineThreadTest, AThreadWithoutAContextHasNoneAfterwards) {
  std::thread([&] {
    ASSERT_EQ(Current(), nullptr);
    UseTheGpu();
    EXPECT_EQ(Current(), nullptr);
  }).join();
}

TEST_F(EngineThreadTest, TheCurrentDeviceStays) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  std::thread([&] {
    ASSERT_EQ(cudaSetDevice(count - 1), cudaSuccess);  // another one, where there are several
    const CUcontext before = Current();
    UseTheGpu();
    EXPECT_EQ(Current(), before);
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, count - 1);
  }).join();
}

TEST_F(EngineThreadTest, AGraphOfAnotherThreadIsCapturedMeanwhile) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 64, stream), cudaSuccess);
  std::thread([&] { UseTheGpu(); }).join();
  EXPECT_EQ(cudaMemsetAsync(memory, 1, 64, stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 2u);
}

}  // namespace
}  // namespace kvstow::testing
