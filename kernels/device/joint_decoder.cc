#include "kernels/device/joint_decoder.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/device/plane_batch.h"

namespace kvstow {
namespace {

using gpu::JointLaunch;
using gpu::PaddedWidth;
using gpu::PlaneBatch;
using gpu::PlaneDecodeLaunch;
using Batch = JointOnDevice::Batch;
using Jobs = std::span<const JointDecodeJob>;

// What all runs of a batch decode from and through.
struct Gathered {
  PlaneBatch planes;
  std::vector<size_t> coefficients;  // where those of each run begin
  std::vector<size_t> heads;         // the first tokens of each run, in what is sent beside
  size_t coefficient_count = 0, head_bytes = 0;
};

// Adds the streams and the first tokens of a run of one page. `shape` is a launch of such pages.
absl::Status GatherPage(const JointOnDevice& on, const JointDecodeJob& page,
                        const JointLaunch& shape, size_t r, const gpu::PlaneJob& job,
                        std::span<uint8_t> head, PlaneBatch& planes) {
  const JointCoder& coder = on.coder();
  const CalibratedRun& calibrated = on.run(r);
  const Run run{{shape.first_layer, shape.layers}, page.tokens, page.first_position};
  std::vector<SharedBytes> bodies;
  for (size_t i = r; i < page.bodies.size(); i += on.run_count()) bodies.push_back(page.bodies[i]);
  KVSTOW_ASSIGN_OR_RETURN(const JointParts parts, coder.Read(calibrated, run, bodies));
  if (shape.first > 0) {
    const Run first{run.layers, shape.first, page.first_position};
    KVSTOW_RETURN_IF_ERROR(
        coder.first_tokens().Decode(first, parts.head, {run.layers, {0, shape.first}}, head));
  }
  if (shape.coded() == 0) return absl::OkStatus();
  PlaneLayout layout = coder.LayoutOf(calibrated);
  Adapt(parts.tables, layout);
  std::vector<float> factors;
  for (const uint8_t step_class : parts.classes) factors.push_back(StepFactor(step_class));
  return planes.Add(job, shape.coded(), coder.options().tokens_per_stream,
                    {layout.rows, layout.tilts, factors}, parts.planes);
}

// Adds those of a run of all pages.
absl::Status GatherRun(const JointOnDevice& on, Jobs pages, Batch batch, size_t r, Gathered& to) {
  const JointLaunch shape = on.LaunchOf(pages, batch.first(1), r, false);
  const size_t head = on.HeadBytes(shape);
  to.heads.push_back(to.head_bytes);
  to.coefficients.push_back(to.coefficient_count);
  gpu::PlaneJob job{.rank = shape.rank, .stride = PaddedWidth(shape.rank)};
  for (size_t p = 0; p < batch.size(); ++p) {
    job.page = static_cast<uint32_t>(p);
    job.coefficients = to.coefficient_count;
    const absl::Status read =
        GatherPage(on, pages[batch[p]], shape, r, job, to.planes.AddBeside(head), to.planes);
    if (!read.ok()) return OfPage(batch[p], read);
    to.coefficient_count += size_t{shape.coded()} * job.stride;
    to.head_bytes += head;
  }
  return absl::OkStatus();
}

// The launches of the product, run by run, each of as many pages as the scratch memory has room
// for.
std::vector<JointLaunch> LaunchesOf(const JointOnDevice& on, Jobs pages, Batch batch,
                                    const Gathered& gathered, uint16_t* coefficients,
                                    uint8_t* heads) {
  const size_t most = std::max<size_t>(kMostRows / pages[batch[0]].tokens, 1);
  std::vector<JointLaunch> out;
  for (size_t r = 0; r < on.run_count(); ++r) {
    for (size_t from = 0; from < batch.size(); from += most) {
      const Batch part = batch.subspan(from, std::min(most, batch.size() - from));
      JointLaunch& launch = out.emplace_back(on.LaunchOf(pages, part, r, false));
      launch.narrow = coefficients + gathered.coefficients[r] +
                      from * launch.coded() * PaddedWidth(launch.rank);
      launch.head = heads + gathered.heads[r] + from * on.HeadBytes(launch);
    }
  }
  return out;
}

absl::Status CheckAll(const JointOnDevice& on, Batch batch, const JointOnDevice::Buffer& refused) {
  KVSTOW_ASSIGN_OR_RETURN(const SharedBytes answers, on.device().Load(refused));
  for (size_t p = 0; p < batch.size(); ++p) {
    uint32_t damaged = 0;
    std::memcpy(&damaged, answers.data() + p * sizeof(damaged), sizeof(damaged));
    if (damaged == 0) continue;
    return OfPage(batch[p], absl::DataLossError("plane body: a stream does not end well"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DecodeBatch(const JointOnDevice& on, Jobs pages, Batch batch) {
  Gathered gathered;
  for (size_t r = 0; r < on.run_count(); ++r)
    KVSTOW_RETURN_IF_ERROR(GatherRun(on, pages, batch, r, gathered));
  KVSTOW_ASSIGN_OR_RETURN(const PlaneBatch::Sent sent, gathered.planes.Send(on.device()));
  KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBuffer> coefficients,
                          on.device().Allocate(gathered.coefficient_count * sizeof(uint16_t) + 16));
  KVSTOW_ASSIGN_OR_RETURN(const auto refused, on.Send(std::vector<uint32_t>(batch.size())));

  uint8_t* const at = on.engine().AddressOf(*sent.buffer);
  PlaneDecodeLaunch planes;
  sent.Place(at, planes);
  planes.streams = gathered.planes.streams(), planes.most_tokens = on.StreamTokens();
  planes.levels = on.levels();
  planes.decoded = static_cast<uint32_t>(pages[batch[0]].bodies.size() / on.run_count());
  planes.step = on.coder().options().StepAt(planes.decoded - 1);
  planes.table = on.plane_table();
  planes.coefficients = on.At<uint16_t>(coefficients);
  planes.refused = reinterpret_cast<uint32_t*>(on.engine().AddressOf(*refused));

  std::vector<JointLaunch> launches =
      LaunchesOf(on, pages, batch, gathered, planes.coefficients, at + sent.beside);
  KVSTOW_ASSIGN_OR_RETURN(const auto scratch, on.ShareScratch(launches, /*narrow=*/false));
  KVSTOW_RETURN_IF_ERROR(on.engine().Decode(planes, launches));
  return CheckAll(on, batch, refused);
}

}  // namespace kvstow
