// The client as Python's part of the package uses it: names and numbers, no options of its own.
//
// Thread-safe. The caller of each function holds the GIL; those that wait give it away. Functions
// throw nanobind::value_error for arguments that the client would refuse, before anything is sent.
#ifndef KVSTOW_CLIENT_PYTHON_NATIVE_NATIVE_CLIENT_H_
#define KVSTOW_CLIENT_PYTHON_NATIVE_NATIVE_CLIENT_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/python/native/call.h"

namespace kvstow::python {

// (code, message): ("OK", "") or the name of an absl::StatusCode and what to do.
nanobind::tuple StatusTuple(const absl::Status& status);

class NativeClient {
 public:
  // `gpu` < 0: none. `calibrations` are blobs.
  NativeClient(ClientOptions options, int gpu, const std::vector<nanobind::bytes>& calibrations);
  ~NativeClient();

  // Ends open calls and waits for them. Later calls throw "the client is closed".
  void Close();
  bool closed() const;
  // The index of the GPU that pages may lie on; kNoGpu (page_bytes.h): none.
  int gpu() const { return gpu_; }

  // These wait, and give (code, message, result or None).
  nanobind::tuple OpenSpace(const SpaceOptions& options);
  nanobind::tuple FindSpace(const std::string& name);
  bool IsStale(const SpaceInfo& space) const;
  nanobind::tuple DropSpace(const std::string& name);
  nanobind::tuple SendCalibration(nanobind::bytes blob);
  nanobind::tuple SendStatistics(const std::string& space, nanobind::bytes blob);
  // (pages, tokens, lease, tiers, code, message)
  nanobind::tuple Lookup(const std::string& space, const std::vector<std::string>& keys,
                         bool lease);
  nanobind::tuple Release(uint64_t lease);
  nanobind::tuple Delete(const std::string& space, const std::vector<std::string>& keys,
                         bool force);
  nanobind::tuple Pin(const std::string& space, const std::vector<std::string>& keys, bool pinned);
  nanobind::tuple Report(const std::string& space, std::vector<PageReport> reports);

  // (address, changes) of the server that serves now
  nanobind::tuple Serving() const;

  // Memory of `bytes` bytes as a numpy array, which owns it; and whether a server shares it.
  nanobind::tuple NewBuffer(size_t bytes);

  // These do not wait.
  std::shared_ptr<Call> Put(const std::string& space, std::vector<PagePut> pages,
                            References references, std::shared_ptr<Completions> completions);
  std::shared_ptr<Call> Get(const std::string& space, uint64_t lease, std::vector<PageGet> pages,
                            References references, std::shared_ptr<Completions> completions);
  std::shared_ptr<Call> GetLayers(const SpaceInfo& space, uint64_t lease,
                                  std::vector<PageGet> pages, uint32_t layers_per_run,
                                  References references, std::shared_ptr<Completions> completions);
  // The second is to be told what is filled.
  std::pair<std::shared_ptr<Call>, std::unique_ptr<LayerPut>> PutLayers(
      const SpaceInfo& space, std::vector<PagePut> pages, References references,
      std::shared_ptr<Completions> completions);

 private:
  std::shared_ptr<Client> client() const;  // throws where it is closed

  const int gpu_;
  mutable std::mutex mutex_;
  std::shared_ptr<Client> client_;
};

}  // namespace kvstow::python

#endif  // KVSTOW_CLIENT_PYTHON_NATIVE_NATIVE_CLIENT_H_
