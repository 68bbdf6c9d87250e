#include "kernels/device/joint_decoder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/device/host_threads.h"
#include "kernels/device/plane_batch.h"

namespace kvstow {
namespace {

using gpu::JointLaunch;
using gpu::PaddedWidth;
using gpu::PlaneBatch;
using gpu::PlaneDecodeLaunch;
using gpu::TokenLaunch;
using Batch = JointOnDevice::Batch;
using Jobs = std::span<const JointDecodeJob>;

// A run of a page, read as far as the host reads it.
struct ReadRun {
  absl::Status status;
  std::vector<SharedBytes> bodies;  // `parts` points into them
  JointParts parts;
  PlaneLayout layout;
  std::vector<float> factors;
  std::vector<uint8_t> head;  // raw first tokens
};

// What all runs of a batch decode from and through.
struct Gathered {
  std::vector<ReadRun> read;  // what `planes` borrows
  PlaneBatch planes;
  std::vector<size_t> coefficients;  // where those of each run begin
  std::vector<size_t> heads;         // the first tokens of each run, in what is sent beside
  size_t coefficient_count = 0, head_bytes = 0;
};

// `shape` is a launch of such pages.
ReadRun Read(const JointOnDevice& on, const JointDecodeJob& page, const JointLaunch& shape,
             size_t r) {
  const JointCoder& coder = on.coder();
  const Run run{{shape.first_layer, shape.layers}, page.tokens, page.first_position};
  ReadRun out;
  for (size_t i = r; i < page.bodies.size(); i += on.run_count())
    out.bodies.push_back(page.bodies[i]);
  absl::StatusOr<JointParts> parts = coder.Read(on.run(r), run, out.bodies);
  out.status = parts.status();
  if (!parts.ok()) return out;
  out.parts = *std::move(parts);
  out.head.resize(on.HeadBytes(shape));
  if (shape.first > 0) {
    const Run first{run.layers, shape.first, page.first_position};
    out.status = coder.first_tokens().Decode(first, out.parts.head, {run.layers, {0, shape.first}},
                                             out.head);
  }
  const std::span<const int16_t> rows = on.rows(r);
  out.layout.rows.assign(rows.begin(), rows.end());
  Adapt(out.parts.tables, out.layout);
  for (const uint8_t step_class : out.parts.classes) out.factors.push_back(StepFactor(step_class));
  return out;
}

// Adds the streams and the first tokens of a run of all pages, which are read.
absl::Status GatherRun(const JointOnDevice& on, Batch batch, const JointLaunch& shape,
                       std::span<const ReadRun> read, Gathered& to) {
  to.heads.push_back(to.head_bytes);
  to.coefficients.push_back(to.coefficient_count);
  gpu::PlaneJob job{.rank = shape.rank, .stride = PaddedWidth(shape.rank)};
  for (size_t p = 0; p < batch.size(); ++p) {
    const ReadRun& run = read[p];
    if (!run.status.ok()) return OfPage(batch[p], run.status);
    job.page = static_cast<uint32_t>(p);
    job.coefficients = to.coefficient_count;
    to.planes.AddBeside(run.head);
    to.head_bytes += run.head.size();
    to.coefficient_count += size_t{shape.coded()} * job.stride;
    if (shape.coded() == 0) continue;
    const absl::Status added =
        to.planes.Add(job, shape.coded(), on.coder().options().tokens_per_stream,
                      {run.layout.rows, run.layout.tilts, run.factors}, run.parts.planes);
    if (!added.ok()) return OfPage(batch[p], added);
  }
  return absl::OkStatus();
}

absl::StatusOr<Gathered> GatherAll(const JointOnDevice& on, Jobs pages, Batch batch) {
  std::vector<JointLaunch> shapes;
  for (size_t r = 0; r < on.run_count(); ++r)
    shapes.push_back(on.LaunchOf(pages, batch.first(1), r, false));
  Gathered gathered;
  std::vector<ReadRun>& read = gathered.read;
  read.resize(on.run_count() * batch.size());
  OnHostThreads(read.size(), [&](size_t i) {
    const size_t r = i / batch.size();
    read[i] = Read(on, pages[batch[i % batch.size()]], shapes[r], r);
  });
  for (size_t r = 0; r < on.run_count(); ++r) {
    const auto of_run = std::span(read).subspan(r * batch.size(), batch.size());
    KVSTOW_RETURN_IF_ERROR(GatherRun(on, batch, shapes[r], of_run, gathered));
  }
  return gathered;
}

// Memory of a batch that its launches share.
struct OnBatch {
  uint16_t *coefficients, *token_rows;
  uint8_t* heads;
};

// The launches of the product, run by run, each of as many pages as the scratch memory has room
// for.
std::vector<JointLaunch> LaunchesOf(const JointOnDevice& on, Jobs pages, Batch batch,
                                    const Gathered& gathered, const OnBatch& memory) {
  const size_t most = std::max<size_t>(kMostRows / pages[batch[0]].tokens, 1);
  std::vector<JointLaunch> out;
  for (size_t r = 0; r < on.run_count(); ++r) {
    for (size_t from = 0; from < batch.size(); from += most) {
      const Batch part = batch.subspan(from, std::min(most, batch.size() - from));
      JointLaunch& launch = out.emplace_back(on.LaunchOf(pages, part, r, false));
      const size_t rows = from * launch.coded();
      launch.narrow =
          memory.coefficients + gathered.coefficients[r] + rows * PaddedWidth(launch.rank);
      launch.token_rows = memory.token_rows + rows * PaddedWidth(launch.token_width);
      launch.head = memory.heads + gathered.heads[r] + from * on.HeadBytes(launch);
    }
  }
  return out;
}

// What looks at the tokens of a batch, and what holds its memory.
struct LookedAt {
  TokenLaunch launch;
  std::vector<std::shared_ptr<const DeviceBuffer>> held;
};
absl::StatusOr<LookedAt> LookAt(const JointOnDevice& on, Jobs pages, Batch batch) {
  const uint32_t tokens = pages[batch[0]].tokens;
  LookedAt out{.launch = on.vocabulary().LaunchOf(static_cast<uint32_t>(batch.size()), tokens,
                                                  on.FirstOf(pages[batch[0]])),
               .held = {}};
  std::vector<TokenId> ids(batch.size() * tokens, kUnknownToken);
  for (size_t p = 0; p < batch.size(); ++p) {
    std::ranges::copy(pages[batch[p]].token_ids, ids.begin() + static_cast<ptrdiff_t>(p * tokens));
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto there, on.Send(ids));
  out.launch.ids = reinterpret_cast<TokenId*>(on.engine().AddressOf(*there));
  KVSTOW_ASSIGN_OR_RETURN(const auto rows, on.vocabulary().GiveRows(out.launch));
  out.held = {there, rows};
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
  KVSTOW_ASSIGN_OR_RETURN(const Gathered gathered, GatherAll(on, pages, batch));
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
  planes.table = on.tables().planes;
  planes.coefficients = on.At<uint16_t>(coefficients);
  planes.refused = reinterpret_cast<uint32_t*>(on.engine().AddressOf(*refused));

  LookedAt tokens;
  if (on.vocabulary().on()) {
    KVSTOW_ASSIGN_OR_RETURN(tokens, LookAt(on, pages, batch));
  }
  std::vector<JointLaunch> launches = LaunchesOf(
      on, pages, batch, gathered, {planes.coefficients, tokens.launch.rows, at + sent.beside});
  KVSTOW_ASSIGN_OR_RETURN(const auto scratch, on.ShareScratch(launches, /*narrow=*/false));
  KVSTOW_RETURN_IF_ERROR(on.engine().Decode(planes, tokens.launch, launches));
  return CheckAll(on, batch, refused);
}

}  // namespace kvstow
