// AttentionPool: the attention that stored pages received, as workers counted it, pooled over all
// sessions that share a page.
//
// Reports may come late, in any order and from many workers. Scores and counts of queries add up,
// column by column. The pool serves two things. Policies of a cold form read the columns. And a
// page that queries look at more than at others is worth more when something must be dropped. The
// pool orders what is lost first and never touches stored bytes.
//
// Bounded: beyond max_bytes the pool forgets the page that was reported longest ago, which loses
// only that knowledge. A page of a name that now has other content begins anew. Not kept over a
// restart.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_PAGES_ATTENTION_POOL_H_
#define KVSTOW_SERVICE_PAGES_ATTENTION_POOL_H_

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "kernels/importance/importance.h"
#include "kernels/page/encoded_page.h"
#include "storage/segment.h"

namespace kvstow {

struct PooledColumn {
  AttentionColumn column;
  uint32_t layers = 0;
  // The share of attention that the page's tokens would have had from all these queries together,
  // had they looked at every token alike: the sum over queries of tokens / context.
  double even = 0;
};
using PooledColumns = std::map<std::string, PooledColumn, std::less<>>;

class AttentionPool {
 public:
  explicit AttentionPool(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Adds a column of the page whose raw bytes have this digest. Fails with RESOURCE_EXHAUSTED, and
  // adds nothing, for a column more than a page may have and for a column larger than the pool.
  absl::Status Add(const PageName& page, const Digest128& content, absl::string_view name,
                   PooledColumn column);
  // Returns the columns of the page; empty when nothing is known.
  PooledColumns Find(const PageName& page, const Digest128& content) const;

  uint64_t bytes() const;
  size_t pages() const;

 private:
  struct Entry {
    Digest128 content;
    PooledColumns columns;
    uint64_t bytes = 0;
    std::list<PageName>::iterator age;
  };
  using Entries = absl::flat_hash_map<PageName, Entry>;
  void Erase(Entries::iterator entry) KVSTOW_REQUIRES(mu_);

  const uint64_t max_bytes_;
  mutable Mutex mu_;
  Entries entries_ KVSTOW_GUARDED_BY(mu_);
  std::list<PageName> ages_ KVSTOW_GUARDED_BY(mu_);  // reported longest ago first
  uint64_t bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
};

// Returns the columns alone, as policies read them.
AttentionColumns ColumnsOf(const PooledColumns& pooled);

// Returns how much more a segment of these layers is worth than its gain says: the attention that
// the page received there over an even share, from 1 to kMaxWorth. It uses the columns that sum
// probability (attn_sum, attn_window, attn_last; of several the largest). It is 1 when nothing is
// known: reports raise a page's worth and never lower it.
inline constexpr float kMaxWorth = 64;
float WorthOf(const PooledColumns& pooled, LayerRange layers);

// Returns the gains of a page's segments, each times its worth.
std::vector<float> WorthyGains(const PageHeader& header, const PooledColumns& pooled);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_ATTENTION_POOL_H_
