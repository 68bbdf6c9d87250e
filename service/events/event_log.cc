#include "service/events/event_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

using Kind = PageChange::Kind;

std::shared_ptr<const std::string> Shared(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

// Collects changes of one kind into events, and events of one topic into batches.
class EventLog::Writer {
 public:
  using Topic = std::shared_ptr<const std::string>;
  using Emit = absl::FunctionRef<void(Topic topic, std::string payload)>;

  Writer(double seconds, size_t hashes_of_batch, Emit emit)
      : seconds_(seconds), hashes_of_batch_(hashes_of_batch), emit_(emit) {}

  void Clear(const Topic& topic) {
    Turn(topic, Kind::kRestart, 0, {});
    batch_.AddCleared();
  }
  void Stored(const Published& space, uint64_t hash, uint32_t tokens) {
    Turn(space.topic, Kind::kCame, tokens, space.label.adapter);
    Take(hash);
  }
  void Removed(const Published& space, uint64_t hash) {
    Turn(space.topic, Kind::kWent, 0, {});
    Take(hash);
  }
  void EndBatch() {
    EndEvent();
    if (batch_.events() > 0) emit_(topic_, batch_.Finish(seconds_));
  }

 private:
  void Turn(const Topic& topic, Kind kind, uint32_t tokens, absl::string_view adapter) {
    if (topic != topic_) EndBatch();
    if (kind != kind_ || tokens != tokens_ || adapter != adapter_) EndEvent();
    topic_ = topic;
    kind_ = kind;
    tokens_ = tokens;
    adapter_ = std::string(adapter);
  }
  void Take(uint64_t hash) {
    hashes_.push_back(hash);
    if (batch_.hashes() + hashes_.size() >= hashes_of_batch_) EndBatch();
  }
  void EndEvent() {
    if (hashes_.empty()) return;
    if (kind_ == Kind::kWent) {
      batch_.AddRemoved(hashes_);
    } else {
      batch_.AddStored(hashes_, tokens_, adapter_);
    }
    hashes_.clear();
  }

  const double seconds_;
  const size_t hashes_of_batch_;
  const Emit emit_;
  EventBatch batch_;
  Topic topic_;
  // They belong to the event that is not ended.
  Kind kind_ = Kind::kRestart;
  uint32_t tokens_ = 0;
  std::string adapter_;
  std::vector<uint64_t> hashes_;
};

EventLog::EventLog(Options options, FindLabel find_label)
    : options_(std::move(options)),
      find_label_(std::move(find_label)),
      own_topic_(Shared(absl::StrCat("kv@", options_.name, "@"))),
      empty_(Shared(EventBatch().Finish(0))) {}

EventLog::Published* EventLog::Find(SpaceId space) {
  const auto it = spaces_.find(space);
  if (it != spaces_.end()) return &it->second;
  std::optional<Label> label = find_label_(space);
  if (!label.has_value()) return nullptr;
  Published published{.topic = Shared(absl::StrCat("kv@", options_.name, "@", label->model))};
  published.label = *std::move(label);
  return &spaces_.emplace(space, std::move(published)).first->second;
}

void EventLog::Add(const std::vector<PageChange>& changes, double seconds,
                   absl::FunctionRef<void(const EventFrame&)> publish) {
  const auto emit = [&](Writer::Topic topic, std::string payload) {
    Emit({0, std::move(topic), Shared(std::move(payload))}, publish);
  };
  Writer writer(seconds, options_.hashes_of_batch, emit);
  for (const PageChange& change : changes) {
    if (change.kind == Kind::kRestart) {
      writer.EndBatch();
      if (next_sequence_ > 0) ++next_sequence_;
      spaces_.clear();
      kept_.clear();
      kept_bytes_ = 0;
      writer.Clear(own_topic_);
      ++counters_.cleared;
      continue;
    }
    Published* const space = Find(change.space);
    if (space == nullptr) continue;
    if (change.kind == Kind::kWent) {
      if (space->blocks.erase(change.hash) == 0) continue;
      writer.Removed(*space, change.hash);
      ++counters_.removed;
      if (space->blocks.empty()) spaces_.erase(change.space);
      continue;
    }
    // A page whose hash is that of another page of its space is not told: routers see one block.
    if (!space->blocks.try_emplace(change.hash, change.tokens).second) continue;
    ++counters_.stored;
    writer.Stored(*space, change.hash, change.tokens);
  }
  writer.EndBatch();
}

void EventLog::Repeat(double seconds, absl::FunctionRef<void(const EventFrame&)> publish) {
  ++counters_.cleared;
  for (EventFrame& frame : Pages(seconds, options_.hashes_of_batch)) {
    Emit(std::move(frame), publish);
  }
}

void EventLog::Emit(EventFrame frame, Publish publish) {
  frame.sequence = next_sequence_++;
  kept_bytes_ += frame.payload->size();
  kept_.push_back(std::move(frame));
  ++counters_.batches;
  publish(kept_.back());
  while (kept_.size() > options_.max_batches || kept_bytes_ > options_.max_bytes) {
    kept_bytes_ -= kept_.front().payload->size();
    kept_.pop_front();
  }
}

std::vector<EventFrame> EventLog::Pages(double seconds, size_t hashes_of_batch) const {
  std::vector<EventFrame> out;
  const auto emit = [&](Writer::Topic topic, std::string payload) {
    out.push_back({0, std::move(topic), Shared(std::move(payload))});
  };
  Writer writer(seconds, hashes_of_batch, emit);
  writer.Clear(own_topic_);
  for (const auto& [id, space] : spaces_) {
    for (const auto& [hash, tokens] : space.blocks) writer.Stored(space, hash, tokens);
  }
  writer.EndBatch();
  return out;
}

EventLog::Cursor EventLog::Replay(uint64_t first, double seconds) const {
  Cursor replay{.first = first, .next = first};
  if (first >= next_sequence_ || (!kept_.empty() && first >= kept_.front().sequence)) return replay;
  // As many batches as there are numbers for them: one for AllBlocksCleared, one for each space.
  const uint64_t numbers = next_sequence_ - first, taken = 1 + spaces_.size();
  if (numbers <= taken) {
    replay.next = next_sequence_;
    return replay;
  }
  const size_t least = pages() / (numbers - taken) + 1;
  replay.pages = Pages(seconds, std::max(options_.hashes_of_batch, least));
  replay.pages_end = next_sequence_;
  return replay;
}

std::optional<EventFrame> EventLog::Next(Cursor& replay) const {
  const uint64_t number = replay.next;
  EventFrame frame;
  if (number < replay.pages_end) {
    const uint64_t i = number - replay.first;
    frame = i < replay.pages.size() ? replay.pages[i] : EventFrame{0, own_topic_, empty_};
    frame.sequence = number;
  } else {
    if (kept_.empty() || number < kept_.front().sequence || number >= next_sequence_) {
      return std::nullopt;
    }
    frame = kept_[number - kept_.front().sequence];
  }
  ++replay.next;
  return frame;
}

size_t EventLog::pages() const {
  size_t pages = 0;
  for (const auto& [id, space] : spaces_) pages += space.blocks.size();
  return pages;
}

}  // namespace kvstow
