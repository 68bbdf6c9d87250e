// kvstow summaries: what the keys of a case's stored pages span, without the pages.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/case/safetensors.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kernels/importance/key_summary.h"

namespace kvstow::cli {
namespace {

struct Flags : CaseVerbFlags {
  std::string out;
  uint32_t max_levels = 0;
};

struct Summaries {
  size_t pages = 0;
  uint64_t tokens = 0, asked_tokens = 0, bytes = 0, raw_bytes = 0;
  Stop stop;
};

// k_min.L and k_max.L [pages, kv_heads, head_dim] of the payloads of `pages` pages.
absl::Status Write(const std::string& path, const KvSpec& spec, size_t pages,
                   std::span<const uint8_t> payloads) {
  std::vector<NewTensor> tensors;
  for (const char* name : {"k_min.", "k_max."}) {
    for (uint32_t layer = 0; layer < spec.layers; ++layer) {
      tensors.push_back(
          {absl::StrCat(name, layer), "F32", {pages, spec.kv_heads, spec.head_dim_k}});
    }
  }
  KVSTOW_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, tensors, {}));
  const size_t page = SummaryBytes(spec, spec.layers), layer = page / tensors.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t p = 0; p < pages; ++p) {
      std::ranges::copy(payloads.subspan(p * page + i * layer, layer),
                        writer.Data(i).subspan(p * layer).begin());
    }
  }
  return writer.Commit();
}

absl::StatusOr<Summaries> Fetch(const Flags& flags) {
  const auto client = Connect(flags.server);
  KVSTOW_ASSIGN_OR_RETURN(const CasePages pages, OpenCaseInSpace(*client, flags.pages));
  const PrefixHit hit = client->Lookup(flags.pages.space, pages.keys);
  KVSTOW_RETURN_IF_ERROR(hit.status);
  const size_t bytes = SummaryBytes(pages.spec, pages.spec.layers);
  std::vector<uint8_t> payloads(hit.pages * bytes);
  std::vector<PageGet> gets;
  for (uint32_t i = 0; i < hit.pages; ++i) {
    gets.push_back({.key = pages.keys[i],
                    .out = std::span(payloads).subspan(i * bytes, bytes),
                    .max_levels = flags.max_levels});
  }
  const std::vector<GetResult> results =
      client->GetSummaries(flags.pages.space, hit.lease, std::move(gets)).get();
  if (hit.lease != 0) client->Release(hit.lease).IgnoreError();
  Summaries out{.asked_tokens = pages.tokens()};
  for (const GetResult& r : results) {
    if (r.outcome != PageOutcome::kHit) {
      out.stop = StopOf(r);
      break;
    }
    ++out.pages;
    out.tokens += r.tokens;
    out.bytes += r.bytes;
    out.raw_bytes += PageBytes(pages.spec, r.tokens);
  }
  if (out.pages > 0) {
    KVSTOW_RETURN_IF_ERROR(Write(flags.out, pages.spec, out.pages, payloads));
  }
  return out;
}

int Run(const Flags& flags) {
  const absl::StatusOr<Summaries> got = Fetch(flags);
  if (!got.ok()) return FailCase(flags.output, got.status());
  Json json = {{"space", flags.pages.space}, {"tokens", got->asked_tokens},
               {"hit_tokens", got->tokens},  {"hit_pages", got->pages},
               {"bytes", got->bytes},        {"raw_bytes", got->raw_bytes}};
  return PrintHits(flags, std::move(json),
                   {{"hit", absl::StrCat(got->tokens, " of ", got->asked_tokens, " tokens")},
                    {"pages", absl::StrCat(got->pages)},
                    {"came", absl::StrCat(got->bytes, " bytes for pages of ", got->raw_bytes)}},
                   got->stop);
}

}  // namespace

void AddSummaries(const Verb& app) {
  const Verb verb = app.Add(
      "summaries",
      "Fetch what the keys of a case's stored pages span, to choose pages by; exit code 3 when "
      "there are none, 1 when one failed");
  const auto flags = std::make_shared<Flags>();
  AddCaseVerbFlags(verb, *flags);
  verb.Option("OUT", flags->out,
              "safetensors file to write k_min.L and k_max.L [pages, kv_heads, head_dim] to: "
              "least and largest value of each channel of the page's keys")
      .Required();
  verb.Option("--max-levels", flags->max_levels,
              "of the keys as a get with so many levels brings them; 0 = all")
      .ShowDefault();
  verb.Footer("Examples:\n  kvstow summaries --space smollm2 prompt.safetensors spans.safetensors");
  verb.Run([flags] { return Run(*flags); });
}

}  // namespace kvstow::cli
