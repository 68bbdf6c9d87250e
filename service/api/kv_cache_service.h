// kvstow.v1.KvCache as gRPC calls it: every method hands over to KvOperator or to a stream.
//
// Put and Get are raw methods: their messages come as bytes, so that payload is never copied into
// protobuf strings. What is handed in outlives the service.
#ifndef KVSTOW_SERVICE_API_KV_CACHE_SERVICE_H_
#define KVSTOW_SERVICE_API_KV_CACHE_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "service/operators/kv_operator.h"
#include "service/ops/worker_pool.h"
#include "service/spaces/calibrations.h"
#include "service/transports/streams.h"

namespace kvstow {

std::unique_ptr<grpc::Service> MakeKvCacheService(KvOperator& op, Calibrations& calibrations,
                                                  StreamParts& streams, WorkerPool& workers);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_KV_CACHE_SERVICE_H_
