// The requests of a worker in a local session: slots of its memory, pages into them and out of
// them, and into ranges of its memory on the GPU.
//
// It takes a message and gives answers, without sockets, so tests can run it alone. A status that
// is not OK is a broken rule of framing and ends the session; a page's answer reports what is wrong
// with that page. Nothing in the memory is trusted. Requests and answers travel in messages, a page
// that is put is read from its slot as hostile bytes, and a stored page has digests of what was
// stored. A request may do what the session's caller may, for as long as the access file has that
// caller. Admission holds what a page takes beside the slots while it is served: a page that is
// put, or goes to the GPU. A page without room there is UNAVAILABLE or REFUSED after a moment.
//
// Thread-safe: several threads may handle messages of one session. A message takes the time to
// read, decode or encode its pages.
#ifndef KVSTOW_SERVICE_TRANSPORTS_LOCAL_REQUESTS_H_
#define KVSTOW_SERVICE_TRANSPORTS_LOCAL_REQUESTS_H_

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kvstow/v1/local.pb.h"
#include "service/access/access.h"
#include "service/ops/metrics.h"
#include "service/pages/admission.h"
#include "service/pages/incoming_page.h"
#include "service/pages/page_reader.h"
#include "service/spaces/spaces.h"
#include "service/transports/local_gpu.h"
#include "service/transports/slot_table.h"

namespace kvstow {

// The parts that local sessions use; outlives them all.
struct LocalParts {
  Spaces& spaces;
  PutParts& puts;
  PageReader& reader;
  Metrics& metrics;
  Admission& admission;
  LocalGpu* gpu = nullptr;  // null = no memory of a GPU is shared
  Access* access = &Access::ForEverybody();
};

class LocalRequests {
 public:
  // `gpu_memory` is of parts.gpu; null = the session has none.
  LocalRequests(LocalParts& parts, CallerPtr caller, std::span<uint8_t> memory,
                std::shared_ptr<SharedDeviceMemory> gpu_memory = nullptr)
      : parts_(parts),
        caller_(std::move(caller)),
        slots_(memory),
        gpu_memory_(std::move(gpu_memory)) {}

  // `reply` takes each answer as soon as it is there; an error from it ends the handling.
  using Reply = absl::FunctionRef<absl::Status(const v1::LocalReply&)>;
  absl::Status Handle(const v1::LocalRequest& request, Reply reply);

  const SlotTable& slots() const { return slots_; }

 private:
  absl::StatusOr<std::shared_ptr<const Space>> SpaceToPut(const v1::LocalPut& request);
  absl::Status Allocate(const v1::LocalAllocate& request, Reply reply);
  absl::Status Get(const v1::LocalGet& request, Reply reply);
  absl::Status Put(const v1::LocalPut& request, Reply reply);
  v1::LocalGot GetPage(const Space& space, const Asking& by, const v1::LocalGetPage& request);
  absl::StatusOr<FetchedPage> FetchTo(const Space& space, const Asking& by,
                                      const v1::LocalGetPage& request,
                                      std::optional<Time> far_since);
  v1::PutResult PutPage(const Space& space, const v1::LocalPutPage& request);
  v1::PutResult PutFromGpu(const Space& space, const v1::GpuRange& range, IncomingPage& page);
  absl::StatusOr<GpuPage> PageAt(const Space& space, const v1::GpuRange& range);

  LocalParts& parts_;
  const CallerPtr caller_;
  SlotTable slots_;
  const std::shared_ptr<SharedDeviceMemory> gpu_memory_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_LOCAL_REQUESTS_H_
