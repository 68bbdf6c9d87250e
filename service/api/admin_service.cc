#include "service/api/admin_service.h"

#include <functional>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "kvstow/v1/admin.grpc.pb.h"
#include "service/api/unary.h"

namespace kvstow {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Progress of Verify: the latest that was told goes out as soon as the one before it is written.
class VerifyStream final : public grpc::ServerWriteReactor<v1::VerifyProgress> {
 public:
  VerifyStream(AdminOperator& op, WorkerPool& workers, const v1::VerifyRequest& request,
               std::function<void(const absl::Status&)> done) {
    workers.Submit([this, &op, &request, done = std::move(done)] {
      const absl::Status status =
          op.Verify(request, [this](const v1::VerifyProgress& p) { return Tell(p); });
      done(status);
      End(status);
    });
  }
  explicit VerifyStream(const absl::Status& refused) { Finish(ToGrpc(refused)); }

  void OnWriteDone(bool ok) override {
    Next next;
    {
      MutexLock lock(mu_);
      writing_ = false;
      if (!ok) cancelled_ = true;
      next = Decide();
    }
    Act(this, next);
  }
  void OnCancel() override {
    MutexLock lock(mu_);
    cancelled_ = true;
  }
  void OnDone() override { delete this; }

 private:
  enum class Next { kNothing, kWrite, kFinish };

  bool Tell(const v1::VerifyProgress& progress) {
    Next next;
    {
      MutexLock lock(mu_);
      if (cancelled_) return false;
      latest_ = progress;
      next = Decide();
    }
    Act(this, next);
    return true;
  }

  void End(absl::Status status) {
    Next next;
    {
      MutexLock lock(mu_);
      end_ = std::move(status);
      next = Decide();
    }
    Act(this, next);
  }

  // Returns the next step. The thread that gets it does it, outside the lock.
  Next Decide() KVSTOW_REQUIRES(mu_) {
    if (writing_ || finished_) return Next::kNothing;
    if (latest_.has_value() && !cancelled_) {
      out_ = *std::exchange(latest_, std::nullopt);
      writing_ = true;
      return Next::kWrite;
    }
    if (!end_.has_value()) return Next::kNothing;
    finished_ = true;
    return Next::kFinish;
  }

  // Static, since with kNothing the stream may be gone by now: another thread ended it.
  static void Act(VerifyStream* stream, Next next) {
    if (next == Next::kWrite) stream->StartWrite(&stream->out_);
    if (next == Next::kFinish) {
      absl::Status status;
      {
        MutexLock lock(stream->mu_);
        status = *stream->end_;
      }
      stream->Finish(ToGrpc(status));
    }
  }

  v1::VerifyProgress out_;  // belongs to gRPC while writing_
  Mutex mu_;
  std::optional<v1::VerifyProgress> latest_ KVSTOW_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ KVSTOW_GUARDED_BY(mu_);
  bool writing_ KVSTOW_GUARDED_BY(mu_) = false;
  bool finished_ KVSTOW_GUARDED_BY(mu_) = false;
  bool cancelled_ KVSTOW_GUARDED_BY(mu_) = false;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(Gate& gate, const AdminParts& parts, AdminLanes lanes)
      : gate_(gate),
        op_(parts.op),
        quotas_(parts.quotas),
        drain_(parts.drain),
        tenants_(parts.tenants),
        lanes_(lanes) {}

  ServerUnaryReactor* Status(CallbackServerContext* c, const v1::StatusRequest* in,
                             v1::StatusResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.Admin/Status"), c, *in,
                 [=, this](const CallerPtr&) { return op_.Status(*in, *out); });
  }
  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(CallbackServerContext* c,
                                                       const v1::VerifyRequest* in) override {
    const Right& right = RightOf("/kvstow.v1.Admin/Verify");
    const absl::StatusOr<CallerPtr> caller = gate_.Enter(*c, right);
    if (!caller.ok()) return new VerifyStream(caller.status());
    return new VerifyStream(op_, lanes_.verify, *in,
                            [this, c, &right, caller = *caller, in](const absl::Status& result) {
                              gate_.Leave(*c, *caller, right, *in, result);
                            });
  }
  ServerUnaryReactor* SamplePages(CallbackServerContext* c, const v1::SamplePagesRequest* in,
                                  v1::SamplePagesResponse* out) override {
    return ReplyFrom(lanes_.quick, gate_, RightOf("/kvstow.v1.Admin/SamplePages"), c, *in,
                     [=, this](const CallerPtr&) { return op_.SamplePages(*in, *out); });
  }
  ServerUnaryReactor* Ages(CallbackServerContext* c, const v1::AgesRequest* in,
                           v1::AgesResponse* out) override {
    return ReplyFrom(lanes_.quick, gate_, RightOf("/kvstow.v1.Admin/Ages"), c, *in,
                     [=, this](const CallerPtr&) { return op_.Ages(*in, *out); });
  }
  ServerUnaryReactor* Activity(CallbackServerContext* c, const v1::ActivityRequest* in,
                               v1::ActivityResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.Admin/Activity"), c, *in,
                 [=, this](const CallerPtr&) { return op_.Activity(*in, *out); });
  }
  ServerUnaryReactor* Evict(CallbackServerContext* c, const v1::EvictRequest* in,
                            v1::EvictResponse* out) override {
    return ReplyFrom(lanes_.evict, gate_, RightOf("/kvstow.v1.Admin/Evict"), c, *in,
                     [=, this](const CallerPtr&) { return op_.Evict(*in, *out); });
  }
  ServerUnaryReactor* SetBudget(CallbackServerContext* c, const v1::SetBudgetRequest* in,
                                v1::SetBudgetResponse* out) override {
    return ReplyFrom(lanes_.evict, gate_, RightOf("/kvstow.v1.Admin/SetBudget"), c, *in,
                     [=, this](const CallerPtr&) { return op_.SetBudget(*in, *out); });
  }
  ServerUnaryReactor* Flush(CallbackServerContext* c, const v1::FlushRequest* in,
                            v1::FlushResponse* out) override {
    return ReplyFrom(lanes_.evict, gate_, RightOf("/kvstow.v1.Admin/Flush"), c, *in,
                     [=, this](const CallerPtr&) { return op_.Flush(*in, *out); });
  }
  ServerUnaryReactor* Drain(CallbackServerContext* c, const v1::DrainRequest* in,
                            v1::DrainResponse* out) override {
    return ReplyFrom(lanes_.drain, gate_, RightOf("/kvstow.v1.Admin/Drain"), c, *in,
                     [=, this](const CallerPtr&) { return drain_.Run(*in, *out); });
  }
  ServerUnaryReactor* SetQuota(CallbackServerContext* c, const v1::SetQuotaRequest* in,
                               v1::SetQuotaResponse* out) override {
    return ReplyFrom(lanes_.evict, gate_, RightOf("/kvstow.v1.Admin/SetQuota"), c, *in,
                     [=, this](const CallerPtr&) { return quotas_.SetQuota(*in, *out); });
  }
  ServerUnaryReactor* Tenants(CallbackServerContext* c, const v1::TenantsRequest* in,
                              v1::TenantsResponse* out) override {
    return Reply(gate_, RightOf("/kvstow.v1.Admin/Tenants"), c, *in,
                 [=, this](const CallerPtr&) { return quotas_.Tenants(*in, *out); });
  }
  ServerUnaryReactor* RotateKey(CallbackServerContext* c, const v1::RotateKeyRequest* in,
                                v1::RotateKeyResponse* out) override {
    return ReplyFrom(lanes_.evict, gate_, RightOf("/kvstow.v1.Admin/RotateKey"), c, *in,
                     [=, this](const CallerPtr&) { return tenants_.RotateKey(*in, *out); });
  }
  ServerUnaryReactor* DropTenant(CallbackServerContext* c, const v1::DropTenantRequest* in,
                                 v1::DropTenantResponse* out) override {
    return ReplyFrom(lanes_.evict, gate_, RightOf("/kvstow.v1.Admin/DropTenant"), c, *in,
                     [=, this](const CallerPtr&) { return tenants_.DropTenant(*in, *out); });
  }

 private:
  Gate& gate_;
  AdminOperator& op_;
  QuotaOperator& quotas_;
  kvstow::Drain& drain_;
  TenantOperator& tenants_;
  AdminLanes lanes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Gate& gate, const AdminParts& parts,
                                                AdminLanes lanes) {
  return std::make_unique<AdminService>(gate, parts, lanes);
}

}  // namespace kvstow
