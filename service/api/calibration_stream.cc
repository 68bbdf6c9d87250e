#include "service/api/calibration_stream.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "service/spaces/messages.h"
#include "service/transports/streams.h"

namespace kvstow {
namespace {

constexpr std::chrono::seconds kPushback{1};  // about what a blob takes to come and be written

class CalibrationStream final : public grpc::ServerReadReactor<v1::SendCalibrationRequest> {
 public:
  CalibrationStream(Calibrations& calibrations, Gate& gate, WorkerPool& workers,
                    grpc::CallbackServerContext* context, v1::SendCalibrationResponse* out)
      : calibrations_(calibrations), gate_(gate), workers_(workers), context_(context), out_(*out) {
    auto caller = gate.Enter(*context, kRight);
    absl::Status status = caller.status();
    if (status.ok()) caller_ = *std::move(caller);
    if (status.ok() && !(sending_ = calibrations_.BeginSending())) {
      gate.metrics().CountRefusedCall("calibration_memory");
      status = absl::ResourceExhaustedError("others send calibrations now: try again later");
      AddPushback(*context, status, kPushback);
    }
    if (status.ok()) {
      StartSendInitialMetadata();  // tells the worker that it was let in
      StartRead(&in_);
    } else {
      Finish(ToGrpc(status));
    }
  }
  ~CalibrationStream() override {
    if (sending_) calibrations_.EndSending();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      workers_.Submit([this] {
        const absl::Status status = Take();
        gate_.Leave(*context_, *caller_, kRight, out_, status);
        Finish(ToGrpc(status));
      });
    } else if (in_.data().size() > Calibrations::kMaxBlobBytes - blob_.size()) {
      Finish(ToGrpc(absl::ResourceExhaustedError(
          absl::StrCat("a calibration of more than ", Calibrations::kMaxBlobBytes, " bytes"))));
    } else {
      blob_ += in_.data();
      StartRead(&in_);
    }
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Take() {
    KVSTOW_ASSIGN_OR_RETURN(const Calibrations::Added added, calibrations_.Add(AsBytes(blob_)));
    out_.set_calibration(added.id.data(), added.id.size());
    out_.set_already_there(added.already_there);
    return absl::OkStatus();
  }

  static constexpr const Right& kRight = RightOf("/kvstow.v1.KvCache/SendCalibration");

  Calibrations& calibrations_;
  Gate& gate_;
  CallerPtr caller_;
  WorkerPool& workers_;
  grpc::CallbackServerContext* const context_;
  v1::SendCalibrationResponse& out_;
  bool sending_ = false;
  v1::SendCalibrationRequest in_;
  std::string blob_;
};

}  // namespace

grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    Calibrations& calibrations, Gate& gate, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendCalibrationResponse* out) {
  return new CalibrationStream(calibrations, gate, workers, context, out);
}

}  // namespace kvstow
