#include "service/pages/attention_pool.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "service/pages/attention_columns.h"

namespace kvstow {
namespace {

constexpr const char* kProbabilityColumns[] = {"attn_sum", "attn_window", "attn_last"};
constexpr uint64_t kEntryBytes = 256;  // about what an entry takes beside its scores

void AddTo(PooledColumn& pooled, const PooledColumn& column) {
  AttentionColumn& have = pooled.column;
  have.heads = column.column.heads;
  pooled.layers = column.layers;
  have.scores.resize(column.column.scores.size());
  for (size_t i = 0; i < have.scores.size(); ++i) have.scores[i] += column.column.scores[i];
  const uint64_t sum = have.queries + column.column.queries;
  have.queries = sum < have.queries ? UINT64_MAX : sum;
  pooled.even += column.even;
}

}  // namespace

absl::Status AttentionPool::Add(const PageName& page, const Digest128& content,
                                absl::string_view name, PooledColumn column) {
  const uint64_t bytes = column.column.scores.size() * sizeof(float);
  if (bytes + kEntryBytes > max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "column '", name, "' takes ", bytes, " bytes, all reports together have ", max_bytes_));
  }
  MutexLock lock(mu_);
  auto it = entries_.find(page);
  if (it != entries_.end() && it->second.content != content) {
    Erase(it);
    it = entries_.end();
  }
  if (it == entries_.end()) {
    it = entries_.emplace(page, Entry{.content = content, .columns = {}, .age = {}}).first;
    it->second.age = ages_.insert(ages_.end(), page);
  } else {
    ages_.splice(ages_.end(), ages_, it->second.age);
  }
  Entry& entry = it->second;
  auto found = entry.columns.find(name);
  if (found == entry.columns.end()) {
    if (entry.columns.size() >= kMaxColumns) {
      return absl::ResourceExhaustedError(
          absl::StrCat("column '", name, "': the page has ", kMaxColumns, " others already"));
    }
    found = entry.columns.emplace(std::string(name), PooledColumn{}).first;
    const uint64_t added = bytes + (entry.bytes == 0 ? kEntryBytes : 0);
    entry.bytes += added;
    bytes_ += added;
  }
  AddTo(found->second, column);
  while (bytes_ > max_bytes_) Erase(entries_.find(ages_.front()));
  return absl::OkStatus();
}

PooledColumns AttentionPool::Find(const PageName& page, const Digest128& content) const {
  MutexLock lock(mu_);
  const auto it = entries_.find(page);
  if (it == entries_.end() || it->second.content != content) return {};
  return it->second.columns;
}

void AttentionPool::Erase(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  ages_.erase(entry->second.age);
  entries_.erase(entry);
}

uint64_t AttentionPool::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

size_t AttentionPool::pages() const {
  MutexLock lock(mu_);
  return entries_.size();
}

AttentionColumns ColumnsOf(const PooledColumns& pooled) {
  AttentionColumns out;
  for (const auto& [name, column] : pooled) out[name] = column.column;
  return out;
}

float WorthOf(const PooledColumns& pooled, LayerRange layers) {
  double worth = 1;
  for (const char* name : kProbabilityColumns) {
    const auto it = pooled.find(name);
    if (it == pooled.end() || it->second.even <= 0) continue;
    const AttentionColumn& column = it->second.column;
    // [layers, tokens, heads] of a whole number of layers: those before `layers` are skipped.
    const size_t layer = column.scores.size() / std::max<uint32_t>(it->second.layers, 1);
    const auto first = column.scores.begin() + static_cast<ptrdiff_t>(layers.first * layer);
    const double sum = std::accumulate(first, first + layers.count * layer, 0.0);
    const double received = sum / column.heads / std::max<uint32_t>(layers.count, 1);
    worth = std::max(worth, received / it->second.even);
  }
  return static_cast<float>(std::min<double>(worth, kMaxWorth));
}

std::vector<float> WorthyGains(const PageHeader& header, const PooledColumns& pooled) {
  std::vector<float> out;
  for (const SegmentInfo& s : header.segments) {
    out.push_back(s.gain * WorthOf(pooled, {s.first_layer, s.layer_count}));
  }
  return out;
}

}  // namespace kvstow
