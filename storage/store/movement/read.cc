// Bytes out of tiers: reads, and what becomes of copies that prove bad.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "storage/store/movement/movement.h"

namespace kvstow {
namespace {

absl::Status Missing() { return absl::NotFoundError("the segment is not stored (any longer)"); }

// The outcome of reads of copies.
struct Tally {
  uint64_t corrupt = 0, lost = 0, disk_errors = 0;

  // Counts a read that failed. Returns whether the copy is bad, and not just out of reach.
  bool IsBad(const absl::Status& status, TierId t) {
    const bool missing = absl::IsNotFound(status);
    if (!missing && !absl::IsDataLoss(status)) {
      disk_errors += t == TierId::kDisk ? 1 : 0;
      return false;
    }
    ++(missing ? lost : corrupt);
    return true;
  }
  void AddTo(Residency& residency) const {
    if (corrupt + lost + disk_errors == 0) return;
    residency.Count([&](StoreCounters& counters) {
      counters.corrupt_segments += corrupt;
      counters.lost_segments += lost;
      counters.disk_errors += disk_errors;
    });
  }
};

}  // namespace

Movement::Bodies Movement::NothingFor(std::span<const uint16_t> indices) {
  return Bodies(indices.size(), Missing());
}

absl::StatusOr<SharedBytes> Movement::ReadOne(TierId from, const ExpectedSegment& segment) {
  absl::StatusOr<SharedBytes> body = std::move(tier(from).Read({&segment, 1})[0]);
  return tier(from).verifies() ? std::move(body) : Verified(std::move(body), segment.facts);
}

Movement::Bodies Movement::ReadHottest(const Residency::Copies& copies,
                                       std::span<const uint16_t> indices, Checks checks) {
  Bodies out = NothingFor(indices);
  for (const TierId t : kAllTiers) {
    std::vector<ExpectedSegment> expected;
    std::vector<size_t> at;
    for (size_t k = 0; k < indices.size(); ++k) {
      const std::optional<PageEntry::Segment>& segment = copies.segments[k];
      if (!segment.has_value() || segment->tiers.Hottest() != t) continue;
      expected.push_back({{copies.page.number, indices[k]}, copies.space, segment->facts});
      at.push_back(k);
    }
    if (expected.empty()) continue;
    Bodies bodies = tier(t).Read(expected);
    const bool as_is = tier(t).verifies() || (t == TierId::kHost && checks == Checks::kReader);
    for (size_t j = 0; j < at.size(); ++j) {
      out[at[j]] = as_is ? std::move(bodies[j])
                         : Verified(std::move(bodies[j]), copies.segments[at[j]]->facts);
    }
  }
  return out;
}

Movement::Bodies Movement::Read(Claim& claim, std::span<const uint16_t> indices) {
  Bodies out = NothingFor(indices);
  std::vector<BadCopy> bad;
  size_t keep = claim->segment_count;
  Tally tally;
  for (size_t k = 0; k < indices.size(); ++k) {
    const uint16_t i = indices[k];
    if (i >= claim->segment_count) continue;
    const PageEntry::Segment& segment = claim->segments()[i];
    TierSet left = segment.tiers, proven;
    while (!left.empty()) {
      const TierId t = left.Hottest();
      out[k] = ReadOne(t, {claim->id(i), claim->space, segment.facts});
      if (out[k].ok()) break;
      if (tally.IsBad(out[k].status(), t)) {
        bad.push_back({i, t});
        proven.Add(t);
      }
      left.Remove(t);
    }
    // Bad everywhere, and not just out of reach: this segment is gone.
    if (proven == segment.tiers) keep = std::min<size_t>(keep, i);
  }
  tally.AddTo(residency_);
  DropBad(claim, bad, keep);
  return out;
}

uint64_t Movement::VerifyCopies(Claim& claim) {
  std::vector<BadCopy> bad;
  std::vector<SegmentBody> mend;
  size_t keep = claim->segment_count;
  uint64_t bytes = 0;
  Tally tally;
  for (uint16_t i = 0; i < claim->segment_count; ++i) {
    const PageEntry::Segment& segment = claim->segments()[i];
    const SegmentId id = claim->id(i);
    std::optional<SharedBytes> good;
    TierSet left = segment.tiers, proven;
    for (; !left.empty(); left.Remove(left.Hottest())) {
      const TierId t = left.Hottest();
      const absl::StatusOr<SharedBytes> body = ReadOne(t, {id, claim->space, segment.facts});
      bytes += segment.facts.bytes;
      if (body.ok()) {
        good = *body;
      } else if (tally.IsBad(body.status(), t)) {
        bad.push_back({i, t});
        proven.Add(t);
      }
    }
    if (proven == segment.tiers) keep = std::min<size_t>(keep, i);
    if (good.has_value() && proven.Has(TierId::kDisk)) mend.push_back({id, *std::move(good)});
  }
  absl::Status mended;
  if (!mend.empty()) {
    const PageRecord record = claim->Record(claim->on_disk());
    mended = parts_.catalog->PutPage(record, mend, claim->disk_ack);
    tally.disk_errors += mended.ok() ? 0 : 1;
  }
  if (!bad.empty()) Log().warn("page {} has {} damaged copies", claim->number, bad.size());
  tally.AddTo(residency_);
  DropBad(claim, bad, keep);
  if (mended.ok() || claim.gone()) return bytes;
  // A copy that could not be mended goes, so that memory keeps its good one. Later segments go from
  // the disk with it, unless the disk alone has one of them.
  const std::vector<uint16_t> lost = claim->SegmentsIn(TierId::kDisk, mend.front().id.index);
  const bool spare = std::all_of(lost.begin(), lost.end(), [&](uint16_t i) {
    return claim->segments()[i].tiers.Hottest() != TierId::kDisk;
  });
  if (spare) DropCopies(claim, TierId::kDisk, lost);
  return bytes;
}

// Drops the page from segment `keep` on, and bad copies before it. A bad copy on disk stays: what
// is there must be a leading part; it is found again when it is the last copy.
void Movement::DropBad(Claim& claim, std::span<const BadCopy> bad, size_t keep) {
  if (keep < claim->segment_count) Truncate(claim, keep, Why::kDamage).IgnoreError();
  if (claim.gone()) return;
  for (const BadCopy& copy : bad) {
    if (copy.index >= claim->segment_count || copy.tier == TierId::kDisk) continue;
    DropCopies(claim, copy.tier, {&copy.index, 1});
  }
}

// Answers the bodies if all are good.
absl::StatusOr<std::vector<SegmentBody>> Movement::ReadAll(Claim& claim,
                                                           std::span<const uint16_t> indices) {
  const PageNumber number = claim->number;  // the page may go while it is read
  absl::Status read;
  std::vector<SegmentBody> list;
  for (absl::StatusOr<SharedBytes>& body : Read(claim, indices)) {
    read.Update(body.status());
    if (read.ok()) list.push_back({{number, indices[list.size()]}, *std::move(body)});
  }
  if (!read.ok()) return read;
  return list;
}

}  // namespace kvstow
