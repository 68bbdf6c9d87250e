// The passive parts of the store: index, leases, placement, staging.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "storage/store/residency/lease_table.h"
#include "storage/store/residency/page_index.h"
#include "storage/store/residency/placement.h"
#include "storage/store/staging.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

using absl::StatusCode;
using std::chrono::seconds;

// Of the key that is its number, in decimals.
PageRecord Page(PageNumber number, std::vector<uint32_t> sizes) {
  PageRecord page{.number = number,
                  .name = {.space = 1, .key = std::to_string(number)},
                  .header = SharedBytes::Take(std::string("head")),
                  .raw_bytes = 100};
  for (const uint32_t size : sizes) page.facts.push_back({.bytes = size});
  return page;
}

TierSet Only(TierId tier) {
  TierSet tiers;
  tiers.Add(tier);
  return tiers;
}

std::unique_ptr<PageEntry> Entry(PageNumber number, std::vector<uint32_t> sizes, TierId tier) {
  return PageEntry::Make(Page(number, std::move(sizes)), Only(tier));
}

TEST(PageEntry, IsOneBlockWithWhatItWasMadeOf) {
  for (const size_t key_bytes : {1, 7, 8, 32, 64}) {
    PageRecord page = Page(9, {10, 20, 30});
    page.name.key = std::string(key_bytes, 'k');
    page.header = SharedBytes::Take(std::string(key_bytes * 3, 'h'));
    page.whole = page.hot = true;
    const std::unique_ptr<PageEntry> entry = PageEntry::Make(page, Only(TierId::kDisk));
    EXPECT_EQ(entry->name(), page.name);
    EXPECT_EQ(AsString(entry->header()), AsString(page.header.span()));
    EXPECT_EQ(entry->BytesOf(0, 3), 60 + page.header.size());
    entry->Truncate(2);
    ASSERT_EQ(entry->segments().size(), 2u);
    const PageRecord record = entry->Record(2);
    EXPECT_EQ(record.name, page.name);
    EXPECT_TRUE(record.whole && record.hot);
    EXPECT_EQ(record.facts[1].bytes, 20u);
    EXPECT_EQ(entry->on_disk(), 2u);
  }
}

// Ids in a row would have each of many colliding names look at all others, under the store's lock.
TEST(PageIndex, NamesThatCollideAreSpread) {
  PageIndex index(EvictionPolicies().front(), {1000, 1000, 1000},
                  [](const PageName&) { return uint64_t{7}; });
  constexpr int kPages = 20'000;
  for (PageNumber n = 1; n <= kPages; ++n) index.Insert(Entry(n, {1}, TierId::kHost));
  size_t near = 0;
  for (PageNumber n = 1; n <= kPages; ++n) {
    const PageName name{.space = 1, .key = std::to_string(n)};
    ASSERT_EQ(index.Find(name)->number, n);
    near += index.IdFor(name) <= 7 + kPages;
  }
  EXPECT_LT(near, 10u) << "of them the first";
  EXPECT_EQ(index.Find(PageName{.space = 1, .key = "none"}), nullptr);
  EXPECT_TRUE(index.CheckInvariants().ok());
}

TEST(PageIndex, CountsEveryChange) {
  PageIndex index(EvictionPolicies().front(), {1000, 1000, 1000});
  PageEntry* const page = index.Insert(Entry(1, {10, 20}, TierId::kHost));
  EXPECT_EQ(index.bytes(TierId::kHost), 34u);
  index.Change(page, [](PageEntry& p) {
    for (auto& segment : p.segments()) segment.tiers.Add(TierId::kDisk);
    p.segments()[1].tiers.Remove(TierId::kHost);
  });
  EXPECT_OK(index.CheckInvariants());
  EXPECT_EQ(index.bytes(TierId::kHost), 14u) << "the base and the header";
  EXPECT_EQ(index.bytes(TierId::kDisk), 34u);
  EXPECT_EQ(index.usage().encoded_bytes, 34u) << "a page is counted once";
  EXPECT_EQ(index.usage().tiers[1].pages, 1u);
  EXPECT_EQ(index.usage().tiers[2].pages, 0u) << "its base is hotter elsewhere";
  EXPECT_EQ(index.usage(1), index.usage());
  EXPECT_EQ(index.usage(2), StoreUsage{});
  index.Remove(page);
  EXPECT_EQ(index.usage(), StoreUsage{});
  EXPECT_OK(index.CheckInvariants());
}

TEST(PageIndex, NoticesWhatIsOff) {
  PageIndex index(EvictionPolicies().front(), {1000, 1000, 1000});
  PageEntry* const page = index.Insert(Entry(1, {10, 20}, TierId::kHost));
  page->segments()[1].facts.bytes = 21;  // past Change
  EXPECT_THAT(index.CheckInvariants(), HasCode(StatusCode::kInternal));
  page->segments()[1].facts.bytes = 20;
  EXPECT_OK(index.CheckInvariants());
  index.Change(page, [](PageEntry& p) { p.segments()[1].tiers.Add(TierId::kDisk); });
  EXPECT_THAT(index.CheckInvariants(), HasCode(StatusCode::kInternal)) << "no leading part on disk";
}

PageIndex::Offer any(const PageEntry&) { return PageIndex::Offer::kTaken; }

// What a tier would free next until nothing is left of it there, each page's number for each part.
std::vector<PageNumber> Drain(PageIndex& index, TierId tier) {
  std::vector<PageNumber> out;
  for (PageEntry* page = index.Victim(tier, any); page != nullptr; page = index.Victim(tier, any)) {
    out.push_back(page->number);
    const size_t keep = page->KeepIn(tier);
    if (keep == 0) {
      index.Remove(page, tier);
    } else {
      index.Change(
          page, [&](PageEntry& p) { p.Truncate(keep); }, tier);
    }
    EXPECT_OK(index.CheckInvariants());
  }
  return out;
}

class PageIndexOrder : public testing::Test {
 protected:
  // The page of `number` stands at position 16 * number.
  PageEntry* Add(PageNumber number, std::vector<float> gains, bool whole = false) {
    auto page = Entry(number, std::vector<uint32_t>(gains.size(), 10), TierId::kHost);
    for (size_t i = 0; i < gains.size(); ++i) page->segments()[i].facts.gain = gains[i];
    page->whole = whole;
    page->first_position = 16 * number;
    page->tokens = 16;
    page->parent = index_.ParentOf(page->name(), "");
    return index_.Insert(std::move(page));
  }

  PageIndex index_{EvictionPolicies().front(), {1000, 1000, 1000}};
};

TEST_F(PageIndexOrder, PartsWorthLessGoFirstAcrossPages) {
  Add(1, {90, 9, 1});
  Add(3, {60, 40});
  Add(5, {1, 2, 3}, true);
  // Page 1 loses its levels of 1 and 9 in 100 before another loses any; then the whole page goes,
  // of which every byte is worth the average; then 40, 60 and 90 in 100.
  EXPECT_EQ(Drain(index_, TierId::kHost), (std::vector<PageNumber>{1, 1, 5, 3, 3, 1}));
}

TEST_F(PageIndexOrder, GainsThatWereRaisedHoldAPartBack) {
  PageEntry* const raised = Add(1, {90, 9, 1});
  Add(3, {90, 9, 1});
  index_.Change(raised, [](PageEntry& p) {
    for (auto& segment : p.segments()) segment.facts.gain *= 16;
  });
  EXPECT_EQ(Drain(index_, TierId::kHost), (std::vector<PageNumber>{3, 3, 1, 3, 1, 1}));
}

TEST_F(PageIndexOrder, LeavesGoBeforeTheirParentsHoweverTheParentBecameKnown) {
  PageEntry* const first = Add(1, {1});
  index_.Expect({.space = 1, .key = "2"}, *first);
  PageEntry* const second = Add(2, {1});
  PageEntry* const third = Add(3, {1});
  PageEntry* const far = Add(9, {1});
  EXPECT_EQ(second->parent, first->item);
  index_.SetParent(third, *second);
  index_.SetParent(far, *second);
  EXPECT_EQ(far->parent, PolicyItem::kNoParent) << "it does not begin where page 2 ends";
  for (int i = 0; i < 20; ++i) index_.Touch(third, 0);
  for (int i = 0; i < 20; ++i) index_.Touch(far, 0);
  EXPECT_EQ(index_.Victim(TierId::kHost, any), third);
  EXPECT_EQ(Drain(index_, TierId::kHost), (std::vector<PageNumber>{3, 2, 1, 9}));
}

TEST_F(PageIndexOrder, APageMayGoBeforeThePoliciesAreToldOfItsUse) {
  PageEntry* const gone = Add(1, {1});
  PageEntry* const stays = Add(3, {1});
  for (PageEntry* const page : {gone, stays, gone}) index_.Touch(page, 0);
  index_.Remove(gone);
  index_.TellUses();
  EXPECT_OK(index_.CheckInvariants());
  EXPECT_EQ(Drain(index_, TierId::kHost), (std::vector<PageNumber>{3}));
}

TEST_F(PageIndexOrder, APageWithoutItsParentIsWorthNothingUntilThatComes) {
  Add(5, {1});
  auto child = Entry(2, {10}, TierId::kHost);
  child->parent = index_.IdFor({.space = 1, .key = "1"});
  PageEntry* const orphan = index_.Insert(std::move(child));
  EXPECT_EQ(index_.Victim(TierId::kHost, any), orphan);
  Add(1, {1});
  EXPECT_EQ(Drain(index_, TierId::kHost), (std::vector<PageNumber>{5, 2, 1}));
}

// Many wait for one parent. Some go, some of those come back, and one comes back behind another.
TEST_F(PageIndexOrder, TheParentIsToldToThoseThatAreStillThere) {
  constexpr PageNumber kChildren = 1000;
  PageIndex index(EvictionPolicies().front(), {1 << 20, 1 << 20, 1 << 20});
  const uint64_t parent = index.IdFor({.space = 1, .key = "1"});
  const auto add = [&](PageNumber number, uint64_t behind) {
    auto page = Entry(number, {10}, TierId::kHost);
    page->parent = behind;
    return index.Insert(std::move(page));
  };
  const auto find = [&](PageNumber number) {
    return index.Find(PageName{.space = 1, .key = std::to_string(number)});
  };
  for (PageNumber n = 2; n < 2 + kChildren; ++n) add(n, parent);
  for (PageNumber n = 2; n < 2 + kChildren; ++n) {
    if (n % 3 != 0) index.Remove(find(n));
  }
  for (PageNumber n = 2; n < 2 + kChildren; n += 9) add(n, parent);
  PageEntry* const other = add(2 + kChildren, parent);
  index.Remove(other);
  EXPECT_FALSE(add(2 + kChildren, parent + 1)->reachable);
  EXPECT_FALSE(find(2)->reachable);
  add(1, PolicyItem::kNoParent);
  EXPECT_FALSE(find(2 + kChildren)->reachable) << "it waits for another";
  size_t reachable = 0;
  index.ForEach([&](const PageEntry& page) { reachable += page.reachable; });
  EXPECT_EQ(reachable, index.size() - 1);
  EXPECT_OK(index.CheckInvariants());
  EXPECT_EQ(Drain(index, TierId::kHost).size(), 447u);
}

TEST_F(PageIndexOrder, APageThatComesBackIsKnownAgain) {
  PageIndex index(**FindEvictionPolicy("s3fifo"), {100, 100, 100});
  for (PageNumber n = 1; n <= 3; ++n) index.Insert(Entry(n, {10}, TierId::kHost));
  EXPECT_EQ(index.Victim(TierId::kHost, any)->number, 1u);
  index.Remove(index.Find(PageName{.space = 1, .key = "1"}), TierId::kHost);
  PageRecord again = Page(4, {10});
  again.name.key = "1";
  index.Insert(PageEntry::Make(
      again, Only(TierId::kHost)));  // of another number; its ghost sends it to the main queue
  EXPECT_EQ(Drain(index, TierId::kHost), (std::vector<PageNumber>{2, 3, 4}));
}

TEST_F(PageIndexOrder, NamesWithOneHashAreToldApart) {
  PageIndex index(EvictionPolicies().front(), {1000, 1000, 1000},
                  [](const PageName&) { return UINT64_MAX; });
  for (PageNumber n = 1; n <= 4; ++n) index.Insert(Entry(n, {10}, TierId::kHost));
  const auto find = [&](const char* key) { return index.Find(PageName{.space = 1, .key = key}); };
  for (const char* key : {"1", "2", "3", "4"}) EXPECT_EQ(find(key)->key(), key);
  EXPECT_EQ(find("5"), nullptr);
  index.Remove(find("1"));
  index.Remove(find("3"));
  EXPECT_EQ(find("1"), nullptr);
  EXPECT_EQ(find("3"), nullptr);
  EXPECT_EQ(find("4")->number, 4u);
  index.Insert(Entry(3, {10}, TierId::kHost));
  EXPECT_OK(index.CheckInvariants());
  EXPECT_EQ(Drain(index, TierId::kHost).size(), 3u);
}

// However many decisions are taken while they are leased: each costs one step, once.
TEST_F(PageIndexOrder, PagesThatMayNotGoAreOfferedOnce) {
  constexpr PageNumber kPages = 2'000;
  for (const PolicyInfo& policy : EvictionPolicies()) {
    SCOPED_TRACE(policy.name);
    PageIndex index(policy, {1 << 20, 1 << 20, 1 << 20});
    size_t refused = 0;
    const auto unless_leased = [&](const PageEntry& page) {
      if (!page.is_protected()) return PageIndex::Offer::kTaken;
      ++refused;
      return PageIndex::Offer::kHeld;
    };
    std::vector<PageRef> leased;
    for (PageNumber n = 1; n <= kPages; ++n) {
      PageEntry* const page = index.Insert(Entry(n, {10}, TierId::kHost));
      if (n % 2 != 0) continue;
      ++page->leases;
      leased.push_back(page->ref());
    }
    for (PageNumber n = 0; n < kPages / 2; ++n) {
      PageEntry* const page = index.Victim(TierId::kHost, unless_leased);
      ASSERT_NE(page, nullptr);
      ASSERT_EQ(page->number % 2, 1u);
      index.Remove(page, TierId::kHost);
    }
    EXPECT_EQ(index.Victim(TierId::kHost, unless_leased), nullptr);
    EXPECT_LE(refused, leased.size());
    PageEntry* const pinned = index.Find(leased[0]);
    index.Change(pinned, [](PageEntry& page) { page.pinned = true; });
    for (const PageRef& page : leased) index.EndLease(page);
    index.EndLease({.item = 1, .number = kPages + 1});  // of a page that has gone
    for (size_t n = 1; n < leased.size(); ++n) {
      PageEntry* const page = index.Victim(TierId::kHost, unless_leased);
      ASSERT_NE(page, nullptr);
      ASSERT_NE(page, pinned);
      index.Remove(page, TierId::kHost);
    }
    EXPECT_EQ(index.Victim(TierId::kHost, unless_leased), nullptr);
    index.Change(pinned, [](PageEntry& page) { page.pinned = false; });
    EXPECT_EQ(index.Victim(TierId::kHost, unless_leased), pinned);
    EXPECT_OK(index.CheckInvariants());
  }
}

TEST_F(PageIndexOrder, AnotherFormOfAPageTakesItsPlaceInEveryOrder) {
  PageEntry* const hot = Add(1, {1, 1, 1});
  Add(2, {1});
  index_.Change(hot, [](PageEntry& p) { p.hot = true; });
  EXPECT_EQ(index_.HotVictim(TierId::kHost, any), hot);
  const PageRef ref = hot->ref();
  EXPECT_EQ(index_.Find(ref), hot);
  PageRecord cold = Page(7, {5});
  cold.name = hot->name();
  EXPECT_EQ(index_.Replace(hot, PageEntry::Make(cold, Only(TierId::kHost)))->number, 1u);
  EXPECT_OK(index_.CheckInvariants());
  EXPECT_EQ(index_.HotVictim(TierId::kHost, any), nullptr);
  EXPECT_EQ(index_.Find(PageName{.space = 1, .key = "1"})->number, 7u);
  EXPECT_EQ(index_.Find(ref), nullptr) << "it is another page now";
  EXPECT_EQ(Drain(index_, TierId::kHost).size(), 2u);
}

TEST(Placement, WorthIsGainByByteWhateverTheModel) {
  const PagePart page{.bytes = 100, .gain = 10};
  EXPECT_DOUBLE_EQ(WorthOf(page, page, 400), 4) << "a page at 4 x is worth 4 a byte";
  EXPECT_DOUBLE_EQ(WorthOf({.bytes = 25, .gain = 9}, page, 400), 14.4);
  EXPECT_DOUBLE_EQ(WorthOf({.bytes = 250, .gain = 90}, {.bytes = 1000, .gain = 100}, 4000), 14.4);
  EXPECT_DOUBLE_EQ(WorthOf({.bytes = 25}, {.bytes = 100}, 400), 4) << "without gains";
  for (const double gain : {0.0, -1.0, double{NAN}, double{INFINITY}}) {
    const double worth = WorthOf({.bytes = 0, .gain = gain}, page, UINT64_MAX);
    EXPECT_GT(worth, 0);
    EXPECT_LE(worth, 1e6);
  }
}

TEST(LeaseTable, EndsByItself) {
  constexpr PageRef kOne{.item = 11, .number = 1}, kTwo{.item = 22, .number = 2};
  LeaseTable leases(seconds(10), 77, {.leases = 2, .pages = 3});
  Time now{};
  const LeaseId a = leases.Grant({kOne, kTwo}, now);
  const LeaseId b = leases.Grant({kTwo}, now + seconds(1));
  EXPECT_EQ(a, 77u);
  EXPECT_FALSE(leases.HasRoomFor(0)) << "two are all there may be";
  EXPECT_TRUE(leases.Renew(a, now + seconds(5)));
  EXPECT_FALSE(leases.Renew(b, now + seconds(11))) << "ended, though nobody has reaped it yet";
  const auto expired = leases.Expire(now + seconds(11));
  EXPECT_EQ(expired.leases, 1u);
  EXPECT_TRUE(leases.HasRoomFor(1));
  EXPECT_FALSE(leases.HasRoomFor(2)) << "three pages are all there may be";
  EXPECT_EQ(expired.pages, std::vector<PageRef>{kTwo});
  EXPECT_EQ(leases.CountPages(), (absl::flat_hash_map<PageNumber, uint32_t>{{1, 1}, {2, 1}}));
  EXPECT_EQ(leases.Release(a, now + seconds(12)), (std::vector<PageRef>{kOne, kTwo}));
  EXPECT_EQ(leases.Release(a, now + seconds(12)), std::nullopt);
  EXPECT_EQ(leases.size(), 0u);
  EXPECT_EQ(leases.pages(), 0u);
}

// Whoever takes two leases must not see from their ids how many others took in between.
TEST(LeaseTable, IdsSayNothingOfOthersLeases) {
  LeaseTable leases(seconds(10), 77, {});
  std::set<LeaseId> ids;
  LeaseId before = 77;
  int near = 0;
  for (int i = 0; i < 1000; ++i) {
    const LeaseId id = leases.Grant({}, Time{});
    EXPECT_NE(id, 0u);
    EXPECT_TRUE(ids.insert(id).second);
    near += id - before < (uint64_t{1} << 40) ? 1 : 0;
    before = id;
  }
  EXPECT_LE(near, 1) << "the first one";
}

class StagingTest : public testing::Test {
 protected:
  const std::vector<uint8_t> piece_ = std::vector<uint8_t>(40, 7);
  ManualClock clock_;
  Staging staging_{{.ttl = seconds(30), .clock = &clock_}};
};

TEST_F(StagingTest, PiecesInOrderMakeTheWhole) {
  const auto ticket = staging_.Begin(80);
  ASSERT_OK(ticket.status());
  ASSERT_OK(staging_.Append(*ticket, 0, piece_));
  EXPECT_THAT(staging_.Finish(*ticket).status(), HasCode(StatusCode::kFailedPrecondition));
  ASSERT_OK(staging_.Append(*ticket, 40, piece_));
  const auto bytes = staging_.Finish(*ticket);
  ASSERT_OK(bytes.status());
  EXPECT_EQ(bytes->size(), 80u);
  EXPECT_EQ(bytes->data()[79], 7);
  EXPECT_EQ(staging_.staged_bytes(), 0u);
  EXPECT_THAT(staging_.Finish(*ticket).status(), HasCode(StatusCode::kNotFound));
}

TEST_F(StagingTest, RefusesPiecesThatDoNotFit) {
  const auto ticket = staging_.Begin(60);
  ASSERT_OK(ticket.status());
  ASSERT_OK(staging_.Append(*ticket, 0, piece_));
  const auto refused = [&](uint64_t offset, std::span<const uint8_t> piece) {
    EXPECT_THAT(staging_.Append(*ticket, offset, piece), HasCode(StatusCode::kInvalidArgument));
  };
  refused(0, piece_);   // twice
  refused(50, piece_);  // a gap
  refused(40, piece_);  // too long
  refused(40, {});      // empty
  refused(~0ull, piece_);
  EXPECT_THAT(staging_.Append(999, 0, piece_), HasCode(StatusCode::kNotFound));
  EXPECT_THAT(staging_.Begin(0).status(), HasCode(StatusCode::kInvalidArgument));
}

TEST_F(StagingTest, TtlHolds) {
  const auto ticket = staging_.Begin(60);
  ASSERT_OK(ticket.status());
  EXPECT_EQ(staging_.staged_bytes(), 60u);
  clock_.Advance(seconds(29));
  ASSERT_OK(staging_.Append(*ticket, 0, piece_));
  clock_.Advance(seconds(29));
  EXPECT_EQ(staging_.Reap(), 0u) << "touched meanwhile";
  clock_.Advance(seconds(1));
  EXPECT_EQ(staging_.Reap(), 1u);
  EXPECT_EQ(staging_.open_tickets(), 0u);
  EXPECT_EQ(staging_.staged_bytes(), 0u);
  const auto whole = staging_.Begin(piece_.size());
  ASSERT_OK(whole.status());
  ASSERT_OK(staging_.Append(*whole, 0, piece_));
  clock_.Advance(seconds(31));
  EXPECT_EQ(staging_.Reap(), 0u) << "nothing is missing";
  staging_.Abort(*whole);
  staging_.Abort(*whole);
  EXPECT_EQ(staging_.staged_bytes(), 0u);
}

}  // namespace
}  // namespace kvstow
