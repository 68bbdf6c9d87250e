// SendCalibration as gRPC calls it. The stream collects the pieces of a blob and gives the whole
// blob to Calibrations.
//
// A stream holds the blob in memory until then, so only kMaxSending run at a time. One more stream,
// and one that grows too long, ends with RESOURCE_EXHAUSTED. Where callers have identities only an
// admin may send one: a calibration that fits a model codes the pages of every tenant's spaces of
// it. The stream owns itself and goes when its call is done.
#ifndef KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
#define KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "kvstow/v1/kv_cache.pb.h"
#include "service/api/gate.h"
#include "service/ops/worker_pool.h"
#include "service/spaces/calibrations.h"

namespace kvstow {

// The arguments outlive the stream; `out` lives as long as it.
grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    Calibrations& calibrations, Gate& gate, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendCalibrationResponse* out);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
