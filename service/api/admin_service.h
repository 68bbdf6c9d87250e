// kvstow.v1.Admin as gRPC calls it. Each method hands over to AdminOperator; Drain and SetQuota
// fail with UNIMPLEMENTED. The arguments outlive the service.
#ifndef KVSTOW_SERVICE_API_ADMIN_SERVICE_H_
#define KVSTOW_SERVICE_API_ADMIN_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "service/api/gate.h"
#include "service/operators/admin_operator.h"
#include "service/ops/worker_pool.h"

namespace kvstow {

// Work that may take minutes has a thread of its own each, so nothing else waits for it.
struct AdminLanes {
  WorkerPool& quick;
  WorkerPool& verify;
  WorkerPool& evict;  // and budgets, and flushes: calls that move bytes
};

std::unique_ptr<grpc::Service> MakeAdminService(Gate& gate, AdminOperator& op, AdminLanes lanes);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_ADMIN_SERVICE_H_
