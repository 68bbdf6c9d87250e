// kvstow.v1.KvCache as gRPC calls it. Each method hands over to KvOperator or to a stream;
// OpenLocal and OpenDirect answer from their listener.
//
// Put, Get and Lookup are raw methods: their messages come as bytes, so payload is never copied
// into protobuf strings. The arguments outlive the service.
#ifndef KVSTOW_SERVICE_API_KV_CACHE_SERVICE_H_
#define KVSTOW_SERVICE_API_KV_CACHE_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "service/api/gate.h"
#include "service/api/sending_places.h"
#include "service/operators/kv_operator.h"
#include "service/ops/worker_pool.h"
#include "service/transports/streams.h"

namespace kvstow {

std::unique_ptr<grpc::Service> MakeKvCacheService(Gate& gate, KvOperator& op,
                                                  SendingPlaces& sending, StreamParts& streams,
                                                  WorkerPool& workers);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_KV_CACHE_SERVICE_H_
