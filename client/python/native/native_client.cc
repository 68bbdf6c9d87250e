#include "client/python/native/native_client.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "client/python/native/specs.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/device/device.h"
#include "kernels/device/device_sharing.h"

namespace kvstow::python {
namespace {

namespace nb = nanobind;

// Runs `call` without the GIL. The client, if this was its last owner, ends without it too.
template <class F>
auto WithoutGil(std::shared_ptr<Client> client, F&& call) {
  const nb::gil_scoped_release release;
  auto result = call(*client);
  client.reset();
  return result;
}

nb::tuple WithStatus(const absl::Status& status, nb::object result) {
  return nb::make_tuple(absl::StatusCodeToString(status.code()), std::string(status.message()),
                        std::move(result));
}

template <class T, class F>
nb::tuple OrNone(const absl::StatusOr<T>& result, F&& convert) {
  return WithStatus(result.status(), result.ok() ? nb::object(convert(*result)) : nb::none());
}

nb::list OutcomeNames(const std::vector<PageOutcome>& outcomes) {
  nb::list names;
  for (const PageOutcome outcome : outcomes) names.append(std::string(OutcomeName(outcome)));
  return names;
}

void OpenGpu(int gpu, ClientOptions& options) {
  auto sharing = OpenCudaSharing(gpu);
  if (!sharing.ok())
    throw nb::value_error(("gpu: " + std::string(sharing.status().message())).c_str());
  auto device = OpenCudaDevice(gpu);
  if (!device.ok())
    throw nb::value_error(("gpu: " + std::string(device.status().message())).c_str());
  options.gpu = *std::move(sharing);
  options.gpu_device = *std::move(device);
}

}  // namespace

nb::tuple StatusTuple(const absl::Status& status) {
  return nb::make_tuple(absl::StatusCodeToString(status.code()), std::string(status.message()));
}

NativeClient::NativeClient(ClientOptions options, int gpu,
                           const std::vector<nb::bytes>& calibrations)
    : gpu_(gpu) {
  if (gpu >= 0) OpenGpu(gpu, options);
  if (!calibrations.empty()) {
    auto store = std::make_shared<CalibrationStore>();
    for (const nb::bytes& blob : calibrations) {
      const auto added = store->Add(BytesOf(blob));
      if (!added.ok()) {
        throw nb::value_error(("calibrations: " + std::string(added.status().message())).c_str());
      }
    }
    options.calibrations = std::move(store);
  }
  client_ = Client::Connect(std::move(options));
}

NativeClient::~NativeClient() { Close(); }

void NativeClient::Close() {
  const nb::gil_scoped_release release;
  std::shared_ptr<Client> client;
  {
    const std::lock_guard lock(mutex_);
    client.swap(client_);
  }
}

bool NativeClient::closed() const {
  const std::lock_guard lock(mutex_);
  return client_ == nullptr;
}

std::shared_ptr<Client> NativeClient::client() const {
  References::LetGoOfHandedOver();
  const std::lock_guard lock(mutex_);
  if (client_ == nullptr) throw nb::value_error("the client is closed");
  return client_;
}

nb::tuple NativeClient::OpenSpace(const SpaceOptions& options) {
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.OpenSpace(options); }),
                [](const SpaceInfo& info) { return nb::cast(info); });
}

nb::tuple NativeClient::FindSpace(const std::string& name) {
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.FindSpace(name); }),
                [](const SpaceInfo& info) { return nb::cast(info); });
}

bool NativeClient::IsStale(const SpaceInfo& space) const { return client()->IsStale(space); }

nb::tuple NativeClient::DropSpace(const std::string& name) {
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.DropSpace(name); }),
                [](uint64_t pages) { return nb::int_(pages); });
}

nb::tuple NativeClient::SendStatistics(const std::string& space, nb::bytes blob) {
  const auto bytes = BytesOf(blob);
  return StatusTuple(
      WithoutGil(client(), [&](Client& c) { return c.SendStatistics(space, bytes); }));
}

nb::tuple NativeClient::SendCalibration(nb::bytes blob) {
  const auto bytes = BytesOf(blob);
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.SendCalibration(bytes); }),
                [](const std::string& name) { return nb::bytes(name.data(), name.size()); });
}

nb::tuple NativeClient::Lookup(const std::string& space, const std::vector<std::string>& keys,
                               bool lease) {
  const PrefixHit hit =
      WithoutGil(client(), [&](Client& c) { return c.Lookup(space, keys, lease); });
  return nb::make_tuple(hit.pages, hit.tokens, hit.lease, nb::cast(hit.tiers),
                        absl::StatusCodeToString(hit.status.code()),
                        std::string(hit.status.message()));
}

nb::tuple NativeClient::Release(uint64_t lease) {
  return StatusTuple(WithoutGil(client(), [&](Client& c) { return c.Release(lease); }));
}

nb::tuple NativeClient::Delete(const std::string& space, const std::vector<std::string>& keys,
                               bool force) {
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.Delete(space, keys, force); }),
                OutcomeNames);
}

nb::tuple NativeClient::Pin(const std::string& space, const std::vector<std::string>& keys,
                            bool pinned) {
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.Pin(space, keys, pinned); }),
                OutcomeNames);
}

nb::tuple NativeClient::Report(const std::string& space, std::vector<PageReport> reports) {
  const auto convert = [](const std::vector<ReportResult>& results) {
    nb::list out;
    for (const ReportResult& result : results) {
      out.append(nb::make_tuple(std::string(OutcomeName(result.outcome)), result.message));
    }
    return out;
  };
  return OrNone(WithoutGil(client(), [&](Client& c) { return c.ReportAttention(space, reports); }),
                convert);
}

nb::tuple NativeClient::Serving() const {
  const ServingNode serving = WithoutGil(client(), [](Client& c) { return c.serving(); });
  return nb::make_tuple(serving.address, serving.changes);
}

nb::tuple NativeClient::NewBuffer(size_t bytes) {
  std::unique_ptr<PageBuffer> buffer =
      WithoutGil(client(), [&](Client& c) { return c.NewBuffer(bytes); });
  const std::span<uint8_t> memory = buffer->bytes();
  const bool shared = buffer->shared();
  nb::capsule owner(buffer.release(), [](void* at) noexcept {
    const nb::gil_scoped_release release;
    delete static_cast<PageBuffer*>(at);
  });
  return nb::make_tuple(
      nb::ndarray<nb::numpy, uint8_t>(memory.data(), {memory.size()}, owner).cast(), shared);
}

std::shared_ptr<Call> NativeClient::Put(const std::string& space, std::vector<PagePut> pages,
                                        References references,
                                        std::shared_ptr<Completions> completions) {
  auto call = std::make_shared<Call>(std::move(completions), std::move(references));
  WithoutGil(client(), [&](Client& c) {
    c.PutAsync(space, std::move(pages),
               [call](std::vector<PutResult> results) { call->Finish(std::move(results)); });
    return true;
  });
  return call;
}

std::shared_ptr<Call> NativeClient::Get(const std::string& space, uint64_t lease,
                                        std::vector<PageGet> pages, References references,
                                        std::shared_ptr<Completions> completions) {
  auto call = std::make_shared<Call>(std::move(completions), std::move(references));
  WithoutGil(client(), [&](Client& c) {
    c.GetAsync(space, lease, std::move(pages),
               [call](std::vector<GetResult> results) { call->Finish(std::move(results)); });
    return true;
  });
  return call;
}

std::shared_ptr<Call> NativeClient::GetLayers(const SpaceInfo& space, uint64_t lease,
                                              std::vector<PageGet> pages, uint32_t layers_per_run,
                                              References references,
                                              std::shared_ptr<Completions> completions) {
  auto call = std::make_shared<Call>(std::move(completions), std::move(references));
  WithoutGil(client(), [&](Client& c) {
    c.GetLayersAsync(
        space, lease, std::move(pages), layers_per_run,
        [call](LayerRange layers, std::span<const GetResult> so_far) {
          call->AddRun(layers, so_far);
        },
        [call](std::vector<GetResult> results) { call->Finish(std::move(results)); });
    return true;
  });
  return call;
}

std::pair<std::shared_ptr<Call>, std::unique_ptr<LayerPut>> NativeClient::PutLayers(
    const SpaceInfo& space, std::vector<PagePut> pages, References references,
    std::shared_ptr<Completions> completions) {
  auto call = std::make_shared<Call>(std::move(completions), std::move(references));
  auto put = WithoutGil(client(), [&](Client& c) {
    return c.PutLayers(space, std::move(pages), [call](std::vector<PutResult> results) {
      call->Finish(std::move(results));
    });
  });
  return {std::move(call), std::move(put)};
}

}  // namespace kvstow::python
