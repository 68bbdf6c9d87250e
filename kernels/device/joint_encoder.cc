#include "kernels/device/joint_encoder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/device/host_threads.h"
#include "kernels/device/joint_memory.h"
#include "kernels/entropy/plane_coder.h"

namespace kvstow {
namespace {

using gpu::AskLaunch;
using gpu::JointLaunch;
using gpu::Places;
using gpu::PlaneBody;
using gpu::PlaneEncodeJob;
using gpu::PlaneEncodeLaunch;
using gpu::TokenLaunch;
using gpu::WordsMove;

// One batch on its way. The body of run r of page p is number r * pages + p.
class BatchEncoder {
 public:
  BatchEncoder(const JointOnDevice& on, std::span<const JointEncodeJob> pages,
               JointOnDevice::Batch batch)
      : on_(on), pages_(pages), batch_(batch) {
    for (size_t r = 0; r < on_.run_count(); ++r) {
      runs_.push_back(on_.LaunchOf(pages, batch, r, true));
      AddBodies(r);
      AddLaunches(r);
    }
    if (on_.query_means().on()) AddAsks();
  }

  absl::Status Run();
  // Puts a page together.
  JointPage PageOf(size_t p) const;

 private:
  void AddBodies(size_t r);
  void AddStreams(const PlaneBody& body);
  void AddLaunches(size_t r);
  void AddAsks();
  absl::Status Place();
  void PlaceLaunches();
  absl::Status PlaceAsks();
  absl::Status PlaceTokens();
  absl::Status SendLists();
  absl::Status CollectWords();

  // Returns the number of the first stream of body `b`.
  size_t FirstStream(size_t b) const { return b * streams_of_body_; }
  // A part of the answer.
  template <typename T>
  std::vector<T> Answer(size_t at, size_t first, size_t count) const {
    std::vector<T> out(count);
    if (count > 0)
      std::memcpy(out.data(), answer_.data() + at + first * sizeof(T), count * sizeof(T));
    return out;
  }
  bool Refused(size_t p) const { return Answer<uint32_t>(answers_.refused, p, 1)[0] != 0; }
  std::vector<EncodedLevel> BodyOf(size_t r, size_t p, absl::string_view head) const;
  std::optional<std::string> HeadOf(size_t r, size_t p) const;
  PageTables TablesOf(const PlaneBody& body, size_t b) const;
  JointCoder::Errors ErrorsOf(size_t b) const;

  // Offsets in what goes to the host.
  struct Answers {
    size_t refused = 0, ids = 0, moves = 0, tilts = 0, spreads = 0, sums = 0, counts = 0;
    std::vector<size_t> heads, classes;  // of each run
  };

  const JointOnDevice& on_;
  const std::span<const JointEncodeJob> pages_;
  const JointOnDevice::Batch batch_;
  std::vector<JointLaunch> runs_;  // their shapes: all pages together
  // A launch takes some pages of a run: as many as the scratch memory has room for.
  struct Part {
    size_t run, first;  // page of the batch
  };
  std::vector<Part> parts_;
  std::vector<JointLaunch> launches_;  // of each part
  std::vector<AskLaunch> asks_;        // of some pages each; none: no page asks
  TokenLaunch tokens_;                 // of all pages
  PlaneEncodeLaunch planes_;
  // Lists that go to the device.
  std::vector<int16_t> base_rows_;
  std::vector<PlaneBody> bodies_;
  std::vector<PlaneEncodeJob> jobs_;
  size_t streams_of_body_ = 0;
  size_t list_values_ = 0, q_values_ = 0, energy_values_ = 0, sample_values_ = 0, room_words_ = 0;
  // What holds the memory of the launches.
  std::vector<std::shared_ptr<const DeviceBuffer>> held_;
  std::shared_ptr<DeviceBuffer> answer_there_;
  Answers answers_;
  SharedBytes answer_;
  std::vector<uint32_t> counts_;  // words of each stream and level
  std::vector<size_t> words_at_;  // of each body and level, in words_
  SharedBytes words_;
};

void BatchEncoder::AddBodies(size_t r) {
  const JointLaunch& launch = runs_[r];
  const uint32_t stride = gpu::PaddedWidth(launch.rank), coded = launch.coded();
  const std::span<const int16_t> rows = on_.rows(r);
  PlaneBody body{.tokens = coded,
                 .rank = launch.rank,
                 .stride = stride,
                 .rows_at = static_cast<uint32_t>(base_rows_.size())};
  base_rows_.insert(base_rows_.end(), rows.begin(), rows.end());
  planes_.most_rank = std::max(planes_.most_rank, launch.rank);
  for (size_t p = 0; p < batch_.size(); ++p) {
    body.page = static_cast<uint32_t>(p);
    body.lists_at = static_cast<uint32_t>(list_values_);
    body.q_at = q_values_, body.energies_at = energy_values_, body.sample_at = sample_values_;
    list_values_ += launch.rank;
    q_values_ += size_t{coded} * stride, energy_values_ += coded;
    sample_values_ += size_t{launch.sampled} * launch.rank;
    AddStreams(body);
    bodies_.push_back(body);
  }
  // Rows of 16 bytes; runs may follow one another.
  energy_values_ = (energy_values_ + 15) / 16 * 16;
}

void BatchEncoder::AddStreams(const PlaneBody& body) {
  const uint32_t each = on_.coder().options().tokens_per_stream;
  streams_of_body_ = (size_t{body.tokens} + each - 1) / each;
  for (uint32_t first = 0; first < body.tokens; first += each) {
    const uint32_t tokens = std::min(each, body.tokens - first);
    jobs_.push_back({.body = static_cast<uint32_t>(bodies_.size()),
                     .first = first,
                     .tokens = tokens,
                     .words_at = room_words_});
    room_words_ += gpu::RoomBefore(body.rank, tokens, on_.levels());
  }
}

void BatchEncoder::AddLaunches(size_t r) {
  const size_t most = std::max<size_t>(kMostRows / runs_[r].tokens, 1);
  for (size_t first = 0; first < batch_.size(); first += most) {
    const auto part = batch_.subspan(first, std::min(most, batch_.size() - first));
    parts_.push_back({r, first});
    launches_.push_back(on_.LaunchOf(pages_, part, r, true));
  }
}

void BatchEncoder::AddAsks() {
  const size_t most = std::max<size_t>(kMostRows / runs_[0].tokens, 1);
  for (size_t first = 0; first < batch_.size(); first += most) {
    const auto part = batch_.subspan(first, std::min(most, batch_.size() - first));
    asks_.push_back(on_.query_means().LaunchOf(pages_, part));
  }
}

absl::Status BatchEncoder::SendLists() {
  KVSTOW_ASSIGN_OR_RETURN(const auto rows, on_.Send(base_rows_));
  KVSTOW_ASSIGN_OR_RETURN(const auto bodies, on_.Send(bodies_));
  KVSTOW_ASSIGN_OR_RETURN(const auto jobs, on_.Send(jobs_));
  planes_.base_rows = on_.At<int16_t>(rows), planes_.bodies = on_.At<PlaneBody>(bodies);
  planes_.jobs = on_.At<PlaneEncodeJob>(jobs);
  held_.insert(held_.end(), {rows, bodies, jobs});
  return absl::OkStatus();
}

// Gives the launches their memory.
absl::Status BatchEncoder::Place() {
  planes_.body_count = static_cast<uint32_t>(bodies_.size());
  planes_.streams = static_cast<uint32_t>(jobs_.size());
  planes_.most_tokens = on_.StreamTokens(), planes_.levels = on_.levels();
  planes_.step = on_.coder().options().step;
  planes_.adapts = on_.coder().fit() != nullptr;
  planes_.table = on_.tables().planes;
  planes_.bits = on_.tables().bits, planes_.costs = on_.tables().list_costs;
  KVSTOW_RETURN_IF_ERROR(SendLists());
  KVSTOW_ASSIGN_OR_RETURN(const auto scratch, on_.ShareScratch(launches_, /*narrow=*/true));
  held_.push_back(scratch);

  Places answer;
  answers_.refused = answer.Take(batch_.size() * sizeof(uint32_t));
  if (on_.vocabulary().on())
    answers_.ids = answer.Take(batch_.size() * runs_[0].tokens * sizeof(TokenId));
  for (const JointLaunch& run : runs_) {
    answers_.heads.push_back(answer.Take(run.pages * on_.HeadBytes(run)));
    answers_.classes.push_back(answer.Take(run.rows()));
  }
  answers_.moves = answer.Take(list_values_), answers_.tilts = answer.Take(list_values_);
  answers_.spreads = answer.Take(2 * bodies_.size());
  const size_t blocks = gpu::GainBlocks(planes_.most_rank);
  answers_.sums = answer.Take(bodies_.size() * blocks * (on_.levels() + 1) * sizeof(double));
  answers_.counts = answer.Take(jobs_.size() * on_.levels() * sizeof(uint32_t));
  KVSTOW_ASSIGN_OR_RETURN(answer_there_, on_.device().Allocate(answer.size()));

  Places work;
  const size_t q = work.Take(q_values_ * sizeof(int16_t)), energies = work.Take(energy_values_);
  const size_t order = work.Take(energy_values_ * sizeof(uint32_t));
  const size_t shifts = work.Take(energy_values_);
  const size_t sample = work.Take(sample_values_ * sizeof(float));
  const size_t move_saves = work.Take(list_values_ * sizeof(float));
  const size_t tilt_saves = work.Take(list_values_ * sizeof(float));
  const size_t rows = work.Take(list_values_ * sizeof(int16_t));
  const size_t words = work.Take(room_words_ * sizeof(uint16_t));
  KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBuffer> room,
                          on_.device().Allocate(work.size() + 16));
  held_.push_back(room);
  planes_.q = on_.At<int16_t>(room, q), planes_.energies = on_.At<uint8_t>(room, energies);
  planes_.order = on_.At<uint32_t>(room, order), planes_.shifts = on_.At<int8_t>(room, shifts);
  planes_.sample = on_.At<float>(room, sample);
  planes_.move_saves = on_.At<float>(room, move_saves);
  planes_.tilt_saves = on_.At<float>(room, tilt_saves);
  planes_.rows = on_.At<int16_t>(room, rows), planes_.words = on_.At<uint16_t>(room, words);
  planes_.answer = on_.At<uint8_t>(answer_there_), planes_.answer_bytes = answer.size();
  planes_.moves = on_.At<int8_t>(answer_there_, answers_.moves);
  planes_.tilts = on_.At<int8_t>(answer_there_, answers_.tilts);
  planes_.spreads = planes_.answer + answers_.spreads;
  planes_.sums = on_.At<double>(answer_there_, answers_.sums);
  planes_.counts = on_.At<uint32_t>(answer_there_, answers_.counts);
  planes_.refused = on_.At<uint32_t>(answer_there_, answers_.refused);
  PlaceLaunches();
  if (on_.vocabulary().on()) KVSTOW_RETURN_IF_ERROR(PlaceTokens());
  return asks_.empty() ? absl::OkStatus() : PlaceAsks();
}

void BatchEncoder::PlaceLaunches() {
  for (size_t i = 0; i < launches_.size(); ++i) {
    JointLaunch& launch = launches_[i];
    const auto [r, first] = parts_[i];
    const PlaneBody& body = bodies_[r * batch_.size() + first];
    launch.head = planes_.answer + answers_.heads[r] + first * on_.HeadBytes(launch);
    launch.classes = planes_.answer + answers_.classes[r] + first * launch.coded();
    launch.refused = planes_.refused + first;
    launch.q = planes_.q + body.q_at, launch.energies = planes_.energies + body.energies_at;
    launch.sample = planes_.sample + body.sample_at;
  }
}

// Gives what asks its memory, and the launches the steps that come of it.
absl::Status BatchEncoder::PlaceAsks() {
  KVSTOW_ASSIGN_OR_RETURN(const auto scratch, on_.query_means().ShareScratch(asks_));
  const size_t tokens = runs_[0].tokens, run_stride = batch_.size() * tokens;
  KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBuffer> steps,
                          on_.device().Allocate(runs_.size() * run_stride * sizeof(float)));
  held_.insert(held_.end(), {scratch, steps});
  auto* const log_steps = on_.At<float>(steps);
  size_t first = 0;
  for (AskLaunch& ask : asks_) {
    ask.log_steps = log_steps + first * tokens, ask.run_stride = run_stride;
    first += ask.pages;
  }
  for (size_t i = 0; i < launches_.size(); ++i)
    launches_[i].log_steps = log_steps + parts_[i].run * run_stride + parts_[i].first * tokens;
  return absl::OkStatus();
}

// Gives what looks at tokens its memory, and the launches the rows that come of it.
absl::Status BatchEncoder::PlaceTokens() {
  const JointLaunch& of = runs_[0];
  tokens_ = on_.vocabulary().LaunchOf(of.pages, of.tokens, of.first);
  std::copy_n(of.page, of.pages, tokens_.page);
  tokens_.ids = on_.At<TokenId>(answer_there_, answers_.ids);
  KVSTOW_ASSIGN_OR_RETURN(const auto rows, on_.vocabulary().GiveRows(tokens_));
  held_.push_back(rows);
  for (size_t i = 0; i < launches_.size(); ++i)
    launches_[i].token_rows = tokens_.rows + parts_[i].first * tokens_.coded() * tokens_.stride;
  return absl::OkStatus();
}

absl::Status BatchEncoder::Run() {
  KVSTOW_RETURN_IF_ERROR(Place());
  KVSTOW_RETURN_IF_ERROR(on_.engine().Encode(tokens_, asks_, launches_, planes_));
  KVSTOW_ASSIGN_OR_RETURN(answer_, on_.device().Load(answer_there_));
  return CollectWords();
}

// Brings the words of all streams to the host: body after body, level after level.
absl::Status BatchEncoder::CollectWords() {
  counts_ = Answer<uint32_t>(answers_.counts, 0, jobs_.size() * on_.levels());
  std::vector<WordsMove> moves;
  size_t words = 0;
  for (size_t b = 0; b < bodies_.size(); ++b) {
    for (uint32_t level = 0; level < on_.levels(); ++level) {
      words_at_.push_back(words);
      for (size_t s = FirstStream(b); s < FirstStream(b + 1); ++s) {
        const PlaneEncodeJob& job = jobs_[s];
        const uint32_t count = counts_[s * on_.levels() + level];
        const size_t end = job.words_at + gpu::RoomBefore(bodies_[b].rank, job.tokens, level + 1);
        moves.push_back({.from = end - count, .to = words, .count = count});
        words += count;
      }
    }
  }
  if (words == 0) return absl::OkStatus();
  KVSTOW_ASSIGN_OR_RETURN(const auto there, on_.Send(moves));
  KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBuffer> gathered,
                          on_.device().Allocate(words * sizeof(uint16_t)));
  KVSTOW_RETURN_IF_ERROR(on_.engine().Move({.move_count = static_cast<uint32_t>(moves.size()),
                                            .moves = on_.At<WordsMove>(there),
                                            .from = planes_.words,
                                            .to = on_.At<uint16_t>(gathered)}));
  KVSTOW_ASSIGN_OR_RETURN(words_, on_.device().Load(gathered));
  return absl::OkStatus();
}

std::optional<std::string> BatchEncoder::HeadOf(size_t r, size_t p) const {
  const JointLaunch& run = runs_[r];
  const size_t bytes = on_.HeadBytes(run);
  return on_.coder().first_tokens().Encode(
      {{run.first_layer, run.layers}, run.first, pages_[batch_[p]].first_position},
      answer_.span().subspan(answers_.heads[r] + p * bytes, bytes));
}

PageTables BatchEncoder::TablesOf(const PlaneBody& body, size_t b) const {
  const auto spreads = Answer<uint8_t>(answers_.spreads, 2 * b, 2);
  PageTables tables{.rows = {}, .tilts = {}, .rows_spread = spreads[0], .tilts_spread = spreads[1]};
  if (spreads[0] > 0) tables.rows = Answer<int8_t>(answers_.moves, body.lists_at, body.rank);
  if (spreads[1] > 0) tables.tilts = Answer<int8_t>(answers_.tilts, body.lists_at, body.rank);
  return tables;
}

JointCoder::Errors BatchEncoder::ErrorsOf(size_t b) const {
  const size_t blocks = gpu::GainBlocks(planes_.most_rank), each = on_.levels() + 1;
  const std::vector<double> sums = Answer<double>(answers_.sums, b * blocks * each, blocks * each);
  JointCoder::Errors errors{.left = std::vector<double>(on_.levels())};
  for (size_t block = 0; block < blocks; ++block) {
    errors.energy += sums[block * each];
    for (size_t level = 0; level < on_.levels(); ++level)
      errors.left[level] += sums[block * each + 1 + level];
  }
  return errors;
}

std::vector<EncodedLevel> BatchEncoder::BodyOf(size_t r, size_t p, absl::string_view head) const {
  const JointLaunch& run = runs_[r];
  const size_t b = r * batch_.size() + p;
  const JointEncodeJob& page = pages_[batch_[p]];
  std::vector<std::string> planes(on_.levels());
  for (uint32_t level = 0; level < on_.levels() && run.coded() > 0; ++level) {
    std::vector<uint32_t> lengths;
    size_t words = 0;
    for (size_t s = FirstStream(b); s < FirstStream(b + 1); ++s) {
      lengths.push_back(counts_[s * on_.levels() + level]);
      words += lengths.back();
    }
    planes[level] = StreamLengths(lengths, /*classed=*/true);
    if (words == 0) continue;
    const auto of_level = words_.span().subspan(2 * words_at_[b * on_.levels() + level], 2 * words);
    planes[level].append(reinterpret_cast<const char*>(of_level.data()), of_level.size());
  }
  std::vector<uint8_t> classes;
  if (run.weights != nullptr)
    classes = Answer<uint8_t>(answers_.classes[r], p * run.coded(), run.coded());
  const PageTables tables = TablesOf(bodies_[b], b);
  return on_.coder().Assemble({{run.first_layer, run.layers}, page.tokens, page.first_position},
                              {head, classes, tables}, std::move(planes),
                              run.coded() > 0 ? ErrorsOf(b) : JointCoder::Errors{});
}

JointPage BatchEncoder::PageOf(size_t p) const {
  JointPage out;
  if (Refused(p)) return out;
  std::vector<std::vector<EncodedLevel>> runs;
  for (size_t r = 0; r < runs_.size(); ++r) {
    const std::optional<std::string> head = HeadOf(r, p);
    if (!head.has_value()) return out;
    runs.push_back(BodyOf(r, p, *head));
  }
  out.coded = true;
  out.token_ids = HeaderIds(Answer<TokenId>(answers_.ids, p * tokens_.tokens, tokens_.tokens));
  for (uint32_t level = 0; level < on_.levels(); ++level) {
    for (size_t r = 0; r < runs.size(); ++r) {
      EncodedLevel& coded = runs[r][level];
      out.segments.push_back({.first_layer = static_cast<uint16_t>(runs_[r].first_layer),
                              .layer_count = static_cast<uint16_t>(runs_[r].layers),
                              .level = static_cast<uint8_t>(level),
                              .bytes = static_cast<uint32_t>(coded.body.size()),
                              .gain = static_cast<float>(coded.gain),
                              .digest = Xxh3(coded.body.span())});
      out.bodies.push_back(std::move(coded.body));
    }
  }
  return out;
}

}  // namespace

absl::Status EncodeBatch(const JointOnDevice& on, std::span<const JointEncodeJob> pages,
                         JointOnDevice::Batch batch, std::span<JointPage> out) {
  BatchEncoder encoder(on, pages, batch);
  KVSTOW_RETURN_IF_ERROR(encoder.Run());
  OnHostThreads(batch.size(), [&](size_t p) { out[batch[p]] = encoder.PageOf(p); });
  return absl::OkStatus();
}

}  // namespace kvstow
