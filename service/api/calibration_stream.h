// SendCalibration and SendStatistics as gRPC calls them. A stream collects the pieces of a blob and
// gives the whole blob away.
//
// A stream holds the blob in memory until then, so only kMaxSending run at a time. One more stream,
// and one that grows too long, ends with RESOURCE_EXHAUSTED. Where callers have identities only an
// admin may send a calibration: one that fits a model codes the pages of every tenant's spaces of
// it. Statistics are for one space, so whoever writes to the space may send them. The stream owns
// itself and goes when its call is done.
#ifndef KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
#define KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "kvstow/v1/kv_cache.pb.h"
#include "service/api/gate.h"
#include "service/operators/kv_operator.h"
#include "service/ops/worker_pool.h"
#include "service/spaces/calibrations.h"

namespace kvstow {

// The arguments outlive the stream; `out` lives as long as it.
grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    Calibrations& calibrations, Gate& gate, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendCalibrationResponse* out);
grpc::ServerReadReactor<v1::SendStatisticsRequest>* NewStatisticsStream(
    KvOperator& op, Calibrations& calibrations, Gate& gate, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendStatisticsResponse* out);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
