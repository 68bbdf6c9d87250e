#include "storage/store/residency/page_entry.h"

#include <algorithm>
#include <memory>
#include <new>

#include "storage/record.h"

namespace kvstow {

std::unique_ptr<PageEntry> PageEntry::Make(const PageRecord& record, TierSet tiers) {
  static_assert(sizeof(PageEntry) % alignof(Segment) == 0 &&
                alignof(PageEntry) == alignof(Segment));
  static_assert(kMaxStoreKeyBytes <= UINT8_MAX && kMaxPageSegments <= UINT16_MAX);
  static_assert(kMaxHeaderBytes < 1 << 24);
  const size_t tail = TailBytes(record.name.key.size(), record.header.size());
  void* const block =
      ::operator new(sizeof(PageEntry) + tail + record.facts.size() * sizeof(Segment));
  std::unique_ptr<PageEntry> page(new (block) PageEntry);
  page->number = record.number;
  page->raw_digest = record.raw_digest;
  page->raw_bytes = static_cast<uint32_t>(std::min<uint64_t>(record.raw_bytes, UINT32_MAX));
  page->first_position = record.first_position;
  page->tokens = record.tokens;
  page->parent = record.parent.value_or(PolicyItem::kNoParent);
  page->space = record.name.space;
  page->header_bytes = static_cast<uint32_t>(record.header.size());
  page->whole = record.whole;
  page->hot = record.hot;
  page->segment_count = static_cast<uint16_t>(record.facts.size());
  page->key_bytes = static_cast<uint8_t>(record.name.key.size());
  auto* const key = reinterpret_cast<char*>(page.get() + 1);
  std::copy(record.name.key.begin(), record.name.key.end(), key);
  std::copy_n(record.header.data(), record.header.size(), key + page->key_bytes);
  const std::span<Segment> segments = page->segments();
  for (size_t i = 0; i < segments.size(); ++i) {
    std::construct_at(&segments[i], Segment{record.facts[i], tiers});
  }
  return page;
}

uint64_t PageEntry::BytesOf(size_t first, size_t end) const {
  uint64_t bytes = 0;
  for (size_t i = first; i < end; ++i) bytes += BytesOf(i);
  return bytes;
}

std::vector<uint16_t> PageEntry::SegmentsIn(TierId tier, size_t first) const {
  std::vector<uint16_t> out;
  for (size_t i = first; i < segment_count; ++i) {
    if (segments()[i].tiers.Has(tier)) out.push_back(static_cast<uint16_t>(i));
  }
  return out;
}

size_t PageEntry::KeepIn(TierId tier) const {
  if (whole) return 0;
  size_t keep = segment_count;
  while (keep > 0 && !segments()[keep - 1].tiers.Has(tier)) --keep;
  return keep == 0 ? 0 : keep - 1;
}

size_t PageEntry::SegmentsWithin(uint64_t bytes) const {
  if (whole) return segment_count;
  size_t n = 1;
  uint64_t sum = BytesOf(0);
  while (n < segment_count && (sum += BytesOf(n)) <= bytes) ++n;
  return n;
}

PageRecord PageEntry::Record(size_t segments_on_disk) const {
  PageRecord record{
      .number = number,
      .name = name(),
      .header = SharedBytes::CopyOf(header()),
      .raw_digest = raw_digest,
      .raw_bytes = raw_bytes,
      .first_position = first_position,
      .tokens = tokens,
      .parent = parent == PolicyItem::kNoParent ? std::nullopt : std::optional(parent),
      .whole = whole,
      .hot = hot};
  for (const Segment& segment : segments().first(segments_on_disk)) {
    record.facts.push_back(segment.facts);
  }
  return record;
}

size_t PageEntry::on_disk() const {
  size_t n = 0;
  while (n < segment_count && segments()[n].tiers.Has(TierId::kDisk)) ++n;
  return n;
}

}  // namespace kvstow
