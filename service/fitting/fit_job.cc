#include "service/fitting/fit_job.h"

#include <utility>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr uint32_t kMostPages = 1 << 16, kMostBodies = 1 << 16;

void PutLong(std::span<const uint8_t> bytes, ByteWriter& out) {
  out.Put(uint64_t{bytes.size()});
  out.PutBytes(bytes);
}

SharedBytes GetLong(ByteReader& in, const SharedBytes& all) {
  const auto bytes = in.GetBytes(in.Get<uint64_t>());
  return {all.owner(), bytes};
}

std::string GetLongText(ByteReader& in) {
  return std::string(AsString(in.GetBytes(in.Get<uint64_t>())));
}

void PutPages(const std::vector<FitPage>& pages, ByteWriter& out) {
  out.Put(static_cast<uint32_t>(pages.size()));
  for (const FitPage& page : pages) {
    PutLong(page.header.span(), out);
    out.Put(static_cast<uint32_t>(page.bodies.size()));
    for (const SharedBytes& body : page.bodies) PutLong(body.span(), out);
  }
}

std::vector<FitPage> GetPages(ByteReader& in, const SharedBytes& all) {
  std::vector<FitPage> out;
  const auto pages = in.Get<uint32_t>();
  for (uint32_t i = 0; i < pages && pages <= kMostPages && in.ok(); ++i) {
    FitPage page{.header = GetLong(in, all), .bodies = {}};
    const auto bodies = in.Get<uint32_t>();
    for (uint32_t j = 0; j < bodies && bodies <= kMostBodies && in.ok(); ++j) {
      page.bodies.push_back(GetLong(in, all));
    }
    out.push_back(std::move(page));
  }
  return out;
}

void PutFigures(const FormFigures& figures, ByteWriter& out) {
  out.PutString16(figures.recipe);
  out.Put(figures.ratio);
  out.Put(figures.divergence);
}

FormFigures GetFigures(ByteReader& in) {
  FormFigures out{.recipe = std::string(in.GetString16())};
  out.ratio = in.Get<double>();
  out.divergence = in.Get<double>();
  return out;
}

absl::Status CheckEnd(const ByteReader& in) {
  if (in.ok() && in.remaining() == 0) return absl::OkStatus();
  return absl::DataLossError("a fit's message is cut off");
}

}  // namespace

std::string SerializeFitJob(const FitJob& job) {
  ByteWriter out;
  PutLong(AsBytes(job.space), out);
  out.Put(job.divergence);
  out.PutString16(job.recipe);
  PutLong(AsBytes(job.blob), out);
  out.Put(static_cast<uint8_t>(job.refit));
  PutLong(AsBytes(job.statistics), out);
  out.Put(job.most_table_bytes);
  PutPages(job.fitted_on, out);
  PutPages(job.held_out, out);
  return std::move(out).Take();
}

absl::StatusOr<FitJob> ParseFitJob(const SharedBytes& bytes) {
  ByteReader in(bytes.span());
  FitJob out{.space = GetLongText(in)};
  out.divergence = in.Get<double>();
  out.recipe = std::string(in.GetString16());
  out.blob = GetLongText(in);
  out.refit = in.Get<uint8_t>() != 0;
  out.statistics = GetLongText(in);
  out.most_table_bytes = in.Get<uint64_t>();
  out.fitted_on = GetPages(in, bytes);
  out.held_out = GetPages(in, bytes);
  KVSTOW_RETURN_IF_ERROR(CheckEnd(in));
  return out;
}

std::string SerializeFitOutcome(const FitOutcome& outcome) {
  ByteWriter out;
  for (const FormFigures* figures : {&outcome.own, &outcome.before, &outcome.best}) {
    PutFigures(*figures, out);
  }
  out.Put(outcome.tokens);
  out.Put(outcome.left_out);
  out.PutString16(outcome.why);
  PutLong(AsBytes(outcome.blob), out);  // last: what it needs is not copied again
  return std::move(out).Take();
}

absl::StatusOr<FitOutcome> ParseFitOutcome(const SharedBytes& bytes) {
  ByteReader in(bytes.span());
  FitOutcome out;
  for (FormFigures* figures : {&out.own, &out.before, &out.best}) *figures = GetFigures(in);
  out.tokens = in.Get<uint64_t>();
  out.left_out = in.Get<uint32_t>();
  out.why = std::string(in.GetString16());
  out.blob = GetLongText(in);
  KVSTOW_RETURN_IF_ERROR(CheckEnd(in));
  return out;
}

}  // namespace kvstow
