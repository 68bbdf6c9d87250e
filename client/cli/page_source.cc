#include "client/cli/page_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/case/case_attention.h"
#include "client/case/case_file.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

constexpr uint32_t kTokensAtOnce = 1024;    // of a case
constexpr uint64_t kBatchBytes = 16 << 20;  // of pages in one call

class Cases final : public PageSource {
 public:
  Cases(std::vector<std::string> paths, KvSpec spec, bool with_queries)
      : paths_(std::move(paths)), spec_(std::move(spec)), with_queries_(with_queries) {}

  const KvSpec& spec() const override { return spec_; }
  size_t size() const override { return paths_.size(); }
  absl::string_view things() const override { return "cases"; }
  absl::Status ForEach(const Visit& visit,
                       const std::function<void(size_t)>& progress) const override {
    for (size_t i = 0; i < paths_.size(); ++i) {
      KVSTOW_RETURN_IF_ERROR(VisitCase(paths_[i], visit));
      progress(i + 1);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status VisitCase(const std::string& path, const Visit& visit) const {
    KVSTOW_ASSIGN_OR_RETURN(const CaseFile file, CaseFile::Open(path));
    const std::string difference = FirstDifference(spec_, file.Spec(kTokensAtOnce));
    if (!difference.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is of another model than the first case: ", difference));
    }
    const auto count = static_cast<uint32_t>(file.tokens().size());
    std::optional<CaseAttention> attention;
    if (with_queries_) {
      KVSTOW_ASSIGN_OR_RETURN(attention, CaseAttention::Read(file));
    }
    std::vector<uint8_t> raw;
    for (uint32_t first = 0; first < count; first += kTokensAtOnce) {
      const uint32_t n = std::min(kTokensAtOnce, count - first);
      raw.resize(PageBytes(spec_, n));
      file.ReadPage(first, n, raw);
      const bool last = first + n == count;
      KVSTOW_RETURN_IF_ERROR(
          visit({.raw = raw,
                 .tokens = n,
                 .first_position = first,
                 .queries = last && attention.has_value() ? attention->queries() : nullptr}));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string> paths_;
  const KvSpec spec_;
  const bool with_queries_;
};

class PagesOfSpace final : public PageSource {
 public:
  PagesOfSpace(std::unique_ptr<Client> client, std::string space, KvSpec spec,
               std::vector<std::string> keys)
      : client_(std::move(client)),
        space_(std::move(space)),
        spec_(std::move(spec)),
        keys_(std::move(keys)) {}

  const KvSpec& spec() const override { return spec_; }
  size_t size() const override { return keys_.size(); }
  absl::string_view things() const override { return "pages"; }
  absl::Status ForEach(const Visit& visit,
                       const std::function<void(size_t)>& progress) const override {
    const size_t page_bytes = PageBytes(spec_, spec_.page_tokens);
    const size_t batch = std::max<size_t>(kBatchBytes / page_bytes, 1);
    size_t came = 0;
    std::string why;
    for (size_t next = 0; next < keys_.size();) {
      const size_t n = std::min(batch, keys_.size() - next);
      std::vector<std::vector<uint8_t>> buffers(n, std::vector<uint8_t>(page_bytes));
      std::vector<PageGet> gets;
      for (size_t i = 0; i < n; ++i) gets.push_back({.key = keys_[next + i], .out = buffers[i]});
      const std::vector<GetResult> results = client_->Get(space_, 0, std::move(gets)).get();
      for (size_t i = 0; i < n; ++i) {
        const GetResult& r = results[i];
        if (r.outcome != PageOutcome::kHit) {
          why = absl::StrCat(OutcomeName(r.outcome), ": ", r.message);
          continue;
        }
        ++came;
        KVSTOW_RETURN_IF_ERROR(visit({.raw = std::span(buffers[i]).first(r.bytes),
                                      .tokens = r.tokens,
                                      .first_position = r.first_position}));
      }
      next += n;
      progress(next);
    }
    if (2 * came >= keys_.size()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("only ", came, " of ", keys_.size(),
                                            " pages of space '", space_, "' came (", why,
                                            "): try again"));
  }

 private:
  const std::unique_ptr<Client> client_;
  const std::string space_;
  const KvSpec spec_;
  const std::vector<std::string> keys_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PageSource>> CasesAsSource(std::vector<std::string> paths,
                                                          bool with_queries) {
  KVSTOW_ASSIGN_OR_RETURN(const CaseFile first, CaseFile::Open(paths.at(0)));
  return std::make_unique<Cases>(std::move(paths), first.Spec(kTokensAtOnce), with_queries);
}

absl::StatusOr<std::unique_ptr<PageSource>> SpaceAsSource(const ServerFlags& server,
                                                          const std::string& space,
                                                          uint32_t max_pages) {
  std::unique_ptr<Client> client = Connect(server);
  KVSTOW_ASSIGN_OR_RETURN(SpaceInfo info, client->FindSpace(space));
  v1::SamplePagesRequest request;
  request.set_space(space);
  request.set_max_pages(max_pages);
  KVSTOW_ASSIGN_OR_RETURN(const std::string answer, client->Call("/kvstow.v1.Admin/SamplePages",
                                                                 request.SerializeAsString()));
  v1::SamplePagesResponse response;
  if (!response.ParseFromString(answer)) return absl::InternalError("the answer is no message");
  if (response.keys().empty()) {
    return absl::NotFoundError(absl::StrCat("space '", space, "' has no pages to calibrate on"));
  }
  return std::make_unique<PagesOfSpace>(
      std::move(client), space, std::move(info.spec),
      std::vector<std::string>(response.keys().begin(), response.keys().end()));
}

}  // namespace kvstow::cli
