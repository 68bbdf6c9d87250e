#include "service/pages/attention_columns.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/convert.h"

namespace kvstow {
namespace {

constexpr size_t kMaxNameBytes = 32;
constexpr size_t kScoreBytes = 2;

uint64_t BytesOfColumn(const KvSpec& spec, uint32_t tokens) {
  return kScoreBytes * spec.layers * tokens * spec.kv_heads;
}

absl::Status Wrong(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("column '", name, "' ", why));
}

}  // namespace

absl::Status CheckColumn(const KvSpec& spec, uint32_t tokens, absl::string_view name,
                         uint64_t queries, uint64_t bytes) {
  const auto allowed = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '_';
  };
  if (name.empty() || name.size() > kMaxNameBytes || !std::ranges::all_of(name, allowed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the name of a column has 1 to ", kMaxNameBytes,
        " lower-case letters, digits or '_'; this one has ", name.size(), " bytes, or others"));
  }
  if (queries == 0) return Wrong(name, "sums over no queries: say how many");
  const uint64_t want = BytesOfColumn(spec, tokens);
  if (bytes == want) return absl::OkStatus();
  return Wrong(name, absl::StrCat("has ", bytes, " bytes: ", spec.layers, " layers, ", tokens,
                                  " tokens and ", spec.kv_heads, " KV heads have ", want));
}

absl::StatusOr<AttentionColumn> ReadColumn(const KvSpec& spec, absl::string_view name,
                                           uint64_t queries, std::span<const uint8_t> scores) {
  AttentionColumn out{.heads = spec.kv_heads, .queries = queries, .scores = {}};
  out.scores.resize(scores.size() / kScoreBytes);
  if (LoadHalves(scores.data(), out.scores.size(), out.scores.data())) return out;
  return Wrong(name, "holds NaN or Inf");
}

absl::Status CheckColumns(const KvSpec& spec, const v1::PutPage& page) {
  if (page.columns_size() > kMaxColumns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "columns: ", page.columns_size(), " are too many, a page has at most ", kMaxColumns));
  }
  std::set<absl::string_view> names;
  for (const v1::PageColumn& column : page.columns()) {
    KVSTOW_RETURN_IF_ERROR(
        CheckColumn(spec, page.tokens(), column.name(), column.queries(), column.bytes()));
    if (!names.insert(column.name()).second) return Wrong(column.name(), "came twice");
  }
  return absl::OkStatus();
}

uint64_t ColumnBytes(const v1::PutPage& page) {
  uint64_t bytes = 0;
  for (const v1::PageColumn& column : page.columns()) bytes += column.bytes();
  return bytes;
}

uint64_t MostColumnBytes(const KvSpec& spec) {
  return kMaxColumns * BytesOfColumn(spec, spec.page_tokens);
}

absl::StatusOr<AttentionColumns> ReadColumns(const KvSpec& spec, const v1::PutPage& page,
                                             std::span<const uint8_t> scores) {
  AttentionColumns out;
  for (const v1::PageColumn& column : page.columns()) {
    KVSTOW_ASSIGN_OR_RETURN(out[column.name()], ReadColumn(spec, column.name(), column.queries(),
                                                           scores.first(column.bytes())));
    scores = scores.subspan(column.bytes());
  }
  return out;
}

}  // namespace kvstow
