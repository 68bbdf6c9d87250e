// SendCalibration as gRPC calls it: the pieces of a blob, which Calibrations takes when all are
// here.
//
// A stream holds the blob in memory until then, so only kMaxSending run at a time; one more, and
// one that grows too long, is RESOURCE_EXHAUSTED. It owns itself and goes when its call is done.
#ifndef KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
#define KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "kvstow/v1/kv_cache.pb.h"
#include "service/ops/metrics.h"
#include "service/ops/worker_pool.h"
#include "service/spaces/calibrations.h"

namespace kvstow {

// What is handed in outlives the stream; `out` lives as long as it.
grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    Calibrations& calibrations, Metrics& metrics, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendCalibrationResponse* out);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
