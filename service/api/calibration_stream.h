// SendCalibration and SendStatistics as gRPC calls them. A stream collects the pieces of a blob and
// gives the whole blob away.
//
// A stream has one of few places until then (sending_places.h). One more stream, one that gives way
// to another, and one that grows too long end with RESOURCE_EXHAUSTED. The first two are told when
// to come back. Where callers have identities only an admin may send a calibration: one that fits a
// model codes the pages of every tenant's spaces of it. Statistics are for one space, so whoever
// writes to the space may send them. The audit log has the fields of the first message but its
// piece, the bytes that came, and the answer. The stream owns itself and goes when its call is
// done.
#ifndef KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
#define KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "kvstow/v1/kv_cache.pb.h"
#include "service/api/gate.h"
#include "service/api/sending_places.h"
#include "service/operators/kv_operator.h"
#include "service/ops/worker_pool.h"

namespace kvstow {

struct SendingParts {
  SendingPlaces& places;
  Gate& gate;
  WorkerPool& workers;
};

// The arguments outlive the stream; `out` lives as long as it.
grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    const SendingParts& parts, grpc::CallbackServerContext* context,
    v1::SendCalibrationResponse* out);
grpc::ServerReadReactor<v1::SendStatisticsRequest>* NewStatisticsStream(
    const SendingParts& parts, KvOperator& op, grpc::CallbackServerContext* context,
    v1::SendStatisticsResponse* out);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_CALIBRATION_STREAM_H_
