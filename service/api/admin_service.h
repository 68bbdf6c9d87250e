// kvstow.v1.Admin as gRPC calls it. Each method hands over to an operator. The arguments outlive
// the service.
#ifndef KVSTOW_SERVICE_API_ADMIN_SERVICE_H_
#define KVSTOW_SERVICE_API_ADMIN_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "service/api/gate.h"
#include "service/operators/admin_operator.h"
#include "service/operators/drain.h"
#include "service/operators/quota_operator.h"
#include "service/operators/tenant_operator.h"
#include "service/ops/worker_pool.h"

namespace kvstow {

// Work that may take minutes has a thread of its own each, so nothing else waits for it.
struct AdminLanes {
  WorkerPool& quick;
  WorkerPool& verify;
  WorkerPool& evict;  // and budgets, quotas and flushes: calls that move bytes
  WorkerPool& drain;
};

struct AdminParts {
  AdminOperator& op;
  QuotaOperator& quotas;
  Drain& drain;
  TenantOperator& tenants;
};

std::unique_ptr<grpc::Service> MakeAdminService(Gate& gate, const AdminParts& parts,
                                                AdminLanes lanes);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_ADMIN_SERVICE_H_
