#include "service/pages/attention_reports.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "service/pages/attention_columns.h"

namespace kvstow {
namespace {

PooledColumn ToPool(const PageFacts& page, uint32_t layers, uint64_t context,
                    AttentionColumn column) {
  // The queries saw the page's end at least.
  const uint64_t end = page.first_position + page.tokens;
  const auto seen = static_cast<double>(std::max(context, end));
  const double even = static_cast<double>(column.queries) * page.tokens / seen;
  return {.column = std::move(column), .layers = layers, .even = even};
}

}  // namespace

v1::AttentionResult AttentionReports::Take(const Space& space, const v1::PageAttention& report) {
  const absl::Status s = TakeChecked(space, report);
  v1::AttentionResult out;
  out.set_status(s.ok() ? v1::HIT : absl::IsNotFound(s) ? v1::MISS : v1::REFUSED);
  out.set_message(std::string(s.message()));
  metrics_.CountReport(out.status());
  return out;
}

absl::Status AttentionReports::TakeChecked(const Space& space, const v1::PageAttention& report) {
  const PageName name{.space = space.id, .key = report.key()};
  KVSTOW_ASSIGN_OR_RETURN(const PageFacts facts, store_.residency().Find(name));
  KVSTOW_ASSIGN_OR_RETURN(const PageHeader header, ParsePageHeader(facts.header.span()));
  KVSTOW_RETURN_IF_ERROR(CheckColumn(space.spec, facts.tokens, report.column(), report.queries(),
                                     report.scores().size()));
  KVSTOW_ASSIGN_OR_RETURN(
      AttentionColumn column,
      ReadColumn(space.spec, report.column(), report.queries(), AsBytes(report.scores())));
  KVSTOW_RETURN_IF_ERROR(
      pool_.Add(name, header.raw_digest, report.column(),
                ToPool(facts, space.spec.layers, report.context(), std::move(column))));
  return Weigh(name, facts, header);
}

void AttentionReports::TakePut(const Space& space, const v1::PutPage& page,
                               const AttentionColumns& columns) {
  if (columns.empty()) return;
  const PageName name{.space = space.id, .key = page.key()};
  const auto facts = store_.residency().Find(name);
  if (!facts.ok()) return;  // it is gone already
  const auto header = ParsePageHeader(facts->header.span());
  if (!header.ok()) return;
  for (const v1::PageColumn& info : page.columns()) {
    // A column that does not fit is lost. The page is stored all the same.
    pool_
        .Add(name, header->raw_digest, info.name(),
             ToPool(*facts, space.spec.layers, info.context(), columns.at(info.name())))
        .IgnoreError();
  }
  Weigh(name, *facts, *header).IgnoreError();
}

absl::Status AttentionReports::Weigh(const PageName& name, const PageFacts& facts,
                                     const PageHeader& header) {
  const absl::Status set =
      store_.SetGains(name, facts.number, WorthyGains(header, pool_.Find(name, header.raw_digest)));
  if (!absl::IsNotFound(set)) return set;
  // It got its cold form meanwhile, with what is pooled, or it went.
  return store_.residency().Find(name).status();
}

}  // namespace kvstow
