#include "service/api/calibration_stream.h"

#include <chrono>
#include <functional>
#include <optional>
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

template <typename Request, typename Response>
class BlobStream final : public grpc::ServerReadReactor<Request> {
 public:
  // Does the call with the first message and the whole blob.
  using Take = std::function<absl::Status(const Caller& caller, const Request& first,
                                          const std::string& blob, Response& out)>;

  BlobStream(const Right& right, Take take, Calibrations& calibrations, Gate& gate,
             WorkerPool& workers, grpc::CallbackServerContext* context, Response* out)
      : right_(right),
        take_(std::move(take)),
        calibrations_(calibrations),
        gate_(gate),
        workers_(workers),
        context_(context),
        out_(*out) {
    auto caller = gate.Enter(*context, right);
    absl::Status status = caller.status();
    if (status.ok()) caller_ = *std::move(caller);
    if (status.ok() && !(sending_ = calibrations_.BeginSending())) {
      gate.metrics().CountRefusedCall("calibration_memory");
      status = absl::ResourceExhaustedError("others send calibrations now: try again later");
      AddPushback(*context, status, kPushback);
    }
    if (status.ok()) {
      this->StartSendInitialMetadata();  // tells the worker that it was let in
      this->StartRead(&in_);
    } else {
      this->Finish(ToGrpc(status));
    }
  }
  ~BlobStream() override {
    if (sending_) calibrations_.EndSending();  // the stream broke
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      workers_.Submit([this] {
        const absl::Status status = take_(*caller_, first_.value_or(Request()), blob_, out_);
        gate_.Leave(*context_, *caller_, right_, out_, status);
        End(status);
      });
    } else if (in_.data().size() > Calibrations::kMaxBlobBytes - blob_.size()) {
      End(absl::ResourceExhaustedError(
          absl::StrCat("a calibration of more than ", Calibrations::kMaxBlobBytes,
                       " bytes: an operator may put the file into the server's folder of "
                       "calibrations")));
    } else {
      blob_ += in_.data();
      in_.clear_data();
      if (!first_.has_value()) first_ = in_;
      this->StartRead(&in_);
    }
  }
  void OnDone() override { delete this; }

 private:
  // Gives the place away before the worker hears of the end: it may send the next blob at once.
  void End(const absl::Status& status) {
    blob_ = {};
    calibrations_.EndSending();
    sending_ = false;
    this->Finish(ToGrpc(status));
  }

  const Right& right_;
  const Take take_;
  Calibrations& calibrations_;
  Gate& gate_;
  CallerPtr caller_;
  WorkerPool& workers_;
  grpc::CallbackServerContext* const context_;
  Response& out_;
  bool sending_ = false;
  Request in_;
  std::optional<Request> first_;
  std::string blob_;
};

}  // namespace

grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    Calibrations& calibrations, Gate& gate, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendCalibrationResponse* out) {
  const auto take = [&calibrations](const Caller&, const v1::SendCalibrationRequest&,
                                    const std::string& blob,
                                    v1::SendCalibrationResponse& answer) -> absl::Status {
    KVSTOW_ASSIGN_OR_RETURN(const Calibrations::Added added, calibrations.Add(AsBytes(blob)));
    answer.set_calibration(added.id.data(), added.id.size());
    answer.set_already_there(added.already_there);
    return absl::OkStatus();
  };
  return new BlobStream<v1::SendCalibrationRequest, v1::SendCalibrationResponse>(
      RightOf("/kvstow.v1.KvCache/SendCalibration"), take, calibrations, gate, workers, context,
      out);
}

grpc::ServerReadReactor<v1::SendStatisticsRequest>* NewStatisticsStream(
    KvOperator& op, Calibrations& calibrations, Gate& gate, WorkerPool& workers,
    grpc::CallbackServerContext* context, v1::SendStatisticsResponse* out) {
  const auto take = [&op](const Caller& caller, const v1::SendStatisticsRequest& first,
                          const std::string& blob, v1::SendStatisticsResponse& answer) {
    return op.SendStatistics(caller, first, blob, answer);
  };
  return new BlobStream<v1::SendStatisticsRequest, v1::SendStatisticsResponse>(
      RightOf("/kvstow.v1.KvCache/SendStatistics"), take, calibrations, gate, workers, context,
      out);
}

}  // namespace kvstow
