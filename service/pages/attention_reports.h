// AttentionReports: checks and pools the attention that workers report of pages, and turns it into
// the worth of the pages' segments.
//
// Storage knows gains alone, so a report raises the gains of a page's segments in the store's index
// (WorthOf in attention_pool.h). Header and bodies of the page stay as they are, and so does the
// estimated error of replies. Columns of a put count as the page's first report.
//
// Thread-safe; may wait for a page that is being moved.
#ifndef KVSTOW_SERVICE_PAGES_ATTENTION_REPORTS_H_
#define KVSTOW_SERVICE_PAGES_ATTENTION_REPORTS_H_

#include "kvstow/v1/kv_cache.pb.h"
#include "service/ops/metrics.h"
#include "service/pages/attention_pool.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class AttentionReports {
 public:
  // All of them outlive this.
  AttentionReports(TieredStore& store, AttentionPool& pool, Metrics& metrics)
      : store_(store), pool_(pool), metrics_(metrics) {}

  // Takes a report. HIT: taken. MISS: there is no such page. REFUSED: a column with a wrong name or
  // size, with NaN or Inf, or one too many.
  v1::AttentionResult Take(const Space& space, const v1::PageAttention& report);
  // Takes the columns of a page that was just put, which passed their checks.
  void TakePut(const Space& space, const v1::PutPage& page, const AttentionColumns& columns);

 private:
  absl::Status TakeChecked(const Space& space, const v1::PageAttention& report);
  absl::Status Weigh(const PageName& name, const PageFacts& facts, const PageHeader& header);

  TieredStore& store_;
  AttentionPool& pool_;
  Metrics& metrics_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_ATTENTION_REPORTS_H_
