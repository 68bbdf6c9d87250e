#include "service/api/calibration_stream.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "service/spaces/messages.h"
#include "service/transports/streams.h"

namespace kvstow {
namespace {

constexpr std::chrono::seconds kPushback{1};  // about what a blob takes to come and be written

template <typename Request, typename Response>
class BlobStream final : public grpc::ServerReadReactor<Request>, public SendingPlaces::Stream {
 public:
  // Does the call with the first message and the whole blob.
  using Take = std::function<absl::Status(const Caller& caller, const Request& first,
                                          const std::string& blob, Response& out)>;

  static BlobStream* Start(const Right& right, Take take, const SendingParts& parts,
                           grpc::CallbackServerContext* context, Response* out) {
    const std::shared_ptr<BlobStream> stream(
        new BlobStream(right, std::move(take), parts, *context, *out));
    stream->self_ = stream;
    stream->Begin();
    return stream.get();
  }

  void OnReadDone(bool ok) override {
    bool wants_more = false;
    {
      MutexLock lock(mu_);
      if (ended_) return;
      wants_more = ok && Keep();
      ended_ = !wants_more;
    }
    if (wants_more) {
      this->StartRead(&in_);
    } else if (ok) {
      End(absl::ResourceExhaustedError(
          absl::StrCat("a calibration of more than ", Calibrations::kMaxBlobBytes,
                       " bytes: an operator may put the file into the server's folder of "
                       "calibrations")));
    } else {
      parts_.workers.Submit([this] { End(take_(*caller_, first_, blob_, out_)); });
    }
  }
  void OnDone() override { std::exchange(self_, nullptr).reset(); }

  bool GiveWay() override {
    {
      MutexLock lock(mu_);
      if (ended_) return false;
      ended_ = true;
    }
    parts_.gate.metrics().CountEndedStream("crowded");
    EndForNow("others want to send, and nothing came for a second or a minute has passed");
    return true;
  }

 private:
  BlobStream(const Right& right, Take take, const SendingParts& parts,
             grpc::CallbackServerContext& context, Response& out)
      : right_(right), take_(std::move(take)), parts_(parts), context_(context), out_(out) {}

  void Begin() {
    absl::StatusOr<CallerPtr> caller = parts_.gate.Enter(context_, right_);
    if (!caller.ok()) return this->Finish(ToGrpc(caller.status()));
    caller_ = *std::move(caller);
    std::optional<SendingPlaces::Place> place = parts_.places.Take(*caller_, self_);
    if (!place.has_value()) {
      parts_.gate.metrics().CountRefusedCall("calibration_memory");
      return EndForNow("others send calibrations now");
    }
    {
      MutexLock lock(mu_);
      if (ended_) return;
      place_ = *std::move(place);
    }
    this->StartSendInitialMetadata();  // tells the worker that it was let in
    this->StartRead(&in_);
  }

  // Keeps what came; false when it is too much.
  bool Keep() KVSTOW_REQUIRES(mu_) {
    place_.Moved();
    if (in_.data().size() > Calibrations::kMaxBlobBytes - blob_.size()) return false;
    blob_ += in_.data();
    in_.clear_data();
    if (!std::exchange(begun_, true)) first_ = in_;
    return true;
  }

  void EndForNow(absl::string_view why) {
    const absl::Status status =
        absl::ResourceExhaustedError(absl::StrCat(why, ": try again later"));
    AddPushback(context_, status, kPushback);
    End(status);
  }

  // Gives the place away before the worker hears of the end: it may send the next blob at once.
  void End(const absl::Status& status) {
    const std::string about = absl::StrCat(first_.ShortDebugString(), " bytes: ", blob_.size(), " ",
                                           out_.ShortDebugString());
    parts_.gate.Leave(context_, *caller_, right_, absl::StripAsciiWhitespace(about), status);
    blob_ = {};
    place_ = {};
    this->Finish(ToGrpc(status));
  }

  const Right& right_;
  const Take take_;
  const SendingParts parts_;
  grpc::CallbackServerContext& context_;
  Response& out_;
  std::shared_ptr<BlobStream> self_;  // until OnDone
  CallerPtr caller_;
  Request in_;
  Mutex mu_;
  bool ended_ KVSTOW_GUARDED_BY(mu_) = false;  // what is below belongs to who has set it
  SendingPlaces::Place place_;
  bool begun_ = false;
  Request first_;  // without its data
  std::string blob_;
};

}  // namespace

grpc::ServerReadReactor<v1::SendCalibrationRequest>* NewCalibrationStream(
    const SendingParts& parts, grpc::CallbackServerContext* context,
    v1::SendCalibrationResponse* out) {
  const auto take = [&calibrations = parts.places.calibrations()](
                        const Caller&, const v1::SendCalibrationRequest&, const std::string& blob,
                        v1::SendCalibrationResponse& answer) -> absl::Status {
    KVSTOW_ASSIGN_OR_RETURN(const Calibrations::Added added, calibrations.Add(AsBytes(blob)));
    answer.set_calibration(added.id.data(), added.id.size());
    answer.set_already_there(added.already_there);
    return absl::OkStatus();
  };
  return BlobStream<v1::SendCalibrationRequest, v1::SendCalibrationResponse>::Start(
      RightOf("/kvstow.v1.KvCache/SendCalibration"), take, parts, context, out);
}

grpc::ServerReadReactor<v1::SendStatisticsRequest>* NewStatisticsStream(
    const SendingParts& parts, KvOperator& op, grpc::CallbackServerContext* context,
    v1::SendStatisticsResponse* out) {
  const auto take = [&op](const Caller& caller, const v1::SendStatisticsRequest& first,
                          const std::string& blob, v1::SendStatisticsResponse& answer) {
    return op.SendStatistics(caller, first, blob, answer);
  };
  return BlobStream<v1::SendStatisticsRequest, v1::SendStatisticsResponse>::Start(
      RightOf("/kvstow.v1.KvCache/SendStatistics"), take, parts, context, out);
}

}  // namespace kvstow
