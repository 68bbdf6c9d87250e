#include "service/pages/page_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/importance/key_summary.h"
#include "kernels/methods/kept_tokens.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/page/page.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

// The share of the error that the first `used` segments leave in the range, by their gains.
double ErrorLeft(const PageHeader& header, size_t used, LayerRange layers) {
  if (header.exact) return 0;
  const double slabs = layers.count * (header.head_dim_v > 0 ? 2.0 : 1.0);
  double left = slabs * header.tokens;
  for (size_t i = 0; i < used; ++i) {
    const SegmentInfo& s = header.segments[i];
    if (s.layer_count > 0) left -= s.gain * s.Overlap(layers).count / s.layer_count;
  }
  const double share = left / (slabs * header.tokens);
  return std::isfinite(share) ? std::max(0.0, share) : 1;  // gains that are no numbers say nothing
}

absl::StatusOr<LayerRange> LayersOf(const KvSpec& spec, const v1::GetPage& request) {
  const uint32_t first = request.first_layer();
  const uint32_t count = request.layer_count() > 0 ? request.layer_count()
                                                   : spec.layers - std::min(first, spec.layers);
  if (count == 0 || first >= spec.layers || count > spec.layers - first) {
    return absl::FailedPreconditionError(
        absl::StrCat("layers ", first, " to ", uint64_t{first} + count,
                     " were asked for, the space has ", spec.layers));
  }
  return LayerRange{.first = first, .count = count};
}

// The tokens of a page that a request asks for.
absl::StatusOr<TokenRange> TokensOf(const PageHeader& header, v1::Payload payload,
                                    const v1::GetPage& request) {
  if (payload == v1::ENCODED) return TokenRange{0, header.tokens};
  const uint32_t first = request.first_token();
  const uint32_t count = request.token_count() > 0 ? request.token_count()
                                                   : header.tokens - std::min(first, header.tokens);
  if (count == 0 || first >= header.tokens || count > header.tokens - first) {
    return absl::FailedPreconditionError(
        absl::StrCat("tokens ", first, " to ", uint64_t{first} + count,
                     " were asked for, the page has ", header.tokens));
  }
  return TokenRange{.first = first, .count = count};
}

// Tells a page that this build does not read, because another one wrote it, from a request that
// does not fit the page.
absl::Status UnreadHere(const absl::Status& of_page) {
  if (!absl::IsFailedPrecondition(of_page)) return of_page;
  return absl::UnimplementedError(of_page.message());
}

absl::Status CheckRoom(uint64_t page, uint64_t buffer) {
  if (page <= buffer) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the page has ", page, " bytes, the buffer ",
                                                    buffer,
                                                    ": does the worker use the space's spec?"));
}

// Returns whether the payload has digests that its put made. A worker that names a part cannot know
// that the part is all of the page.
bool HasOwnDigest(v1::Payload payload, const PageHeader& header, const v1::GetPage& request) {
  const bool whole = request.first_layer() == 0 && request.layer_count() == 0 &&
                     request.first_token() == 0 && request.token_count() == 0;
  return payload == v1::ENCODED || (payload == v1::RAW && header.exact && whole);
}

// Sets the digest of a payload whose front may be elsewhere.
void SetDigest(std::span<const uint8_t> front, std::span<const SharedBytes> parts,
               v1::PageReply& reply) {
  if (front.empty() && parts.empty()) return;  // it is not on the host
  Xxh3Stream stream;
  stream.Update(front);
  for (const SharedBytes& part : parts) stream.Update(part.span());
  const Digest128 digest = stream.Finish();
  reply.set_payload_digest(digest.bytes.data(), digest.bytes.size());
}

// docs/FORMAT.md, "Kept tokens".
SharedBytes KeptPayload(const Selection& kept) {
  ByteWriter out;
  WriteKept(kept, {0, kept.layers}, out);
  return SharedBytes::Take(std::move(out).Take());
}

}  // namespace

// The part of a page that is decoded: the first `bodies.size()` segments, as far as the request
// asks for their layers.
struct PageReader::Selected {
  const PageHeader& header;
  LayerRange layers;
  TokenRange tokens;
  std::vector<std::optional<SharedBytes>> bodies;

  uint64_t RawBytes() const { return layers.count * LayerBytes(header.Geometry(), tokens.count); }
  // Returns a page that is stored as its very bytes, in place; nothing when it must be decoded.
  absl::StatusOr<std::optional<std::vector<SharedBytes>>> InPlace(
      const CalibrationStore& calibrations) const {
    if (!header.exact || tokens.count != header.tokens) return std::nullopt;
    auto parts = PageInPlace(header, bodies, layers, calibrations);
    if (!parts.ok()) return UnreadHere(parts.status());
    return parts;
  }
};

absl::Status CheckRequest(const v1::GetPage& request) {
  if (request.key().size() <= kMaxKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("page ", request.page(), ": key has ",
                                                 request.key().size(), " bytes: a key has 1 to ",
                                                 kMaxKeyBytes));
}

uint64_t PayloadBound(const Space& space, const v1::GetPage& request) {
  const auto layers = LayersOf(space.spec, request);
  const uint32_t all = space.spec.page_tokens;
  const uint32_t tokens = request.token_count() > 0 ? std::min(request.token_count(), all) : all;
  return layers.ok() ? layers->count * LayerBytes(space.spec, tokens) : 0;
}

uint64_t FetchBytes(const Space& space, const v1::GetPage& request) {
  return PageBytes(space.spec, space.spec.page_tokens) + PayloadBound(space, request);
}

absl::StatusOr<PageHeader> PageReader::CheckedHeader(const Space& space, const v1::GetPage& request,
                                                     const PageFacts& facts) const {
  absl::StatusOr<PageHeader> parsed = ParsePageHeader(facts.header.span());
  if (!parsed.ok()) return UnreadHere(parsed.status());
  PageHeader header = *std::move(parsed);
  if (header.key != request.key()) {
    return absl::DataLossError("the stored page belongs to another key");
  }
  if (!SameGeometry(header, space.spec)) {
    return absl::DataLossError("the stored page has another geometry than its space");
  }
  if (facts.segments.size() > header.segments.size()) {
    return absl::DataLossError("the store speaks of more segments than the page has");
  }
  for (size_t i = 0; i < facts.segments.size(); ++i) {
    const SegmentInfo& s = header.segments[i];
    if (facts.segments[i].digest != s.digest || facts.segments[i].bytes != s.bytes) {
      return absl::DataLossError(absl::StrCat("segment ", i, " is not the page's"));
    }
  }
  return header;
}

// Reads what is selected. When a body cannot be had, those before it still decode: the selection
// is cut there, unless nothing is left of the base level.
absl::Status PageReader::ReadSegments(const PageName& name, const PageFacts& facts, Checks checks,
                                      Selected& selected) {
  std::vector<uint16_t> indices;
  for (size_t i = 0; i < selected.bodies.size(); ++i) {
    if (selected.header.segments[i].Overlap(selected.layers).count > 0) {
      indices.push_back(static_cast<uint16_t>(i));
    }
  }
  auto bodies = store_.Read(name, facts.number, indices, checks);
  for (size_t i = 0; i < bodies.size(); ++i) {
    if (bodies[i].ok()) {
      selected.bodies[indices[i]] = *std::move(bodies[i]);
      continue;
    }
    selected.bodies.resize(indices[i]);
    const bool usable =
        !selected.header.exact && WholeLevels(selected.header, indices[i], selected.layers) > 0;
    return usable ? absl::OkStatus() : bodies[i].status();
  }
  return absl::OkStatus();
}

// NOT_FOUND, counted, when so much of a page is less than the request will take.
absl::Status PageReader::CheckFidelity(const Selected& selected, const v1::GetPage& request) {
  const uint32_t levels = WholeLevels(selected.header, selected.bodies.size(), selected.layers);
  if (levels == 0) return absl::NotFoundError("its base level is no longer stored");
  if (levels < request.min_levels()) {
    metrics_.CountShortOf("levels");
    return absl::NotFoundError(absl::StrCat("it has ", levels, " levels, at least ",
                                            request.min_levels(), " were asked for"));
  }
  const double error = ErrorLeft(selected.header, selected.bodies.size(), selected.layers);
  if (!request.has_max_error() || error <= request.max_error()) return absl::OkStatus();
  metrics_.CountShortOf("error");
  return absl::NotFoundError(absl::StrCat("its estimated error is ", error, ", at most ",
                                          request.max_error(), " was asked for"));
}

// The GPU decodes to memory of the host first. Other memory knows its own ways.
absl::Status PageReader::Decode(const Wanted& wanted, const Selected& selected, PageSink& out) {
  const PageHeader& header = selected.header;
  if (header.calibration != CalibrationId{} && calibrations_.Find(header.calibration) == nullptr) {
    metrics_.CountMissingCalibration();
    return absl::NotFoundError(absl::StrCat("the page needs calibration ",
                                            HexOf(header.calibration),
                                            ", which the server has not: put its file into the "
                                            "folder of --calibrations and open the space again"));
  }
  const Time begin = Clock::Real().Now();
  const PageRange range{selected.layers, selected.tokens};
  const std::span<uint8_t> host = out.on_host();
  const bool on_gpu = host.empty() || coder_.Decode(wanted.space.spec, header, selected.bodies,
                                                    range, host.first(selected.RawBytes()));
  if (host.empty() || !on_gpu) {
    KVSTOW_RETURN_IF_ERROR(UnreadHere(out.Decode(header, selected.bodies, range, calibrations_)));
  }
  if (coder_.on() && header.calibration != CalibrationId{}) {
    metrics_.CountDevice(CodecWay::kDecode, on_gpu);
  }
  metrics_.ObserveDecode(Clock::Real().Now() - begin, selected.RawBytes());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SharedBytes>> PageReader::RawPayload(const Wanted& wanted,
                                                                const Selected& selected) {
  KVSTOW_ASSIGN_OR_RETURN(auto parts, selected.InPlace(calibrations_));
  if (parts.has_value()) return *std::move(parts);
  ByteBlock block(selected.RawBytes());
  HostSink sink(block.span());
  KVSTOW_RETURN_IF_ERROR(Decode(wanted, selected, sink));
  return std::vector<SharedBytes>{std::move(block).Share()};
}

// Where a sink that is not the host's fails to decode, the host decodes for it.
absl::Status PageReader::RawPayloadTo(const Wanted& wanted, const Selected& selected,
                                      PageSink& out) {
  KVSTOW_RETURN_IF_ERROR(CheckRoom(selected.RawBytes(), out.room()));
  KVSTOW_ASSIGN_OR_RETURN(const auto parts, selected.InPlace(calibrations_));
  if (parts.has_value()) return out.Copy(*parts);
  const absl::Status status = Decode(wanted, selected, out);
  if (status.ok() || absl::IsNotFound(status) || !out.on_host().empty()) return status;
  KVSTOW_ASSIGN_OR_RETURN(const auto decoded, RawPayload(wanted, selected));
  return out.Copy(decoded);
}

// Summarizes the keys as they would be sent: a bound must hold for the keys that the worker gets.
absl::StatusOr<SharedBytes> PageReader::SummaryPayload(const Wanted& wanted,
                                                       const Selected& selected,
                                                       const Selection* kept) {
  ByteBlock block(selected.RawBytes());
  HostSink sink(block.span());
  KVSTOW_RETURN_IF_ERROR(RawPayloadTo(wanted, selected, sink));
  KvSpec spec = selected.header.Geometry();
  spec.layers = selected.layers.count;
  const auto summary = SummarizeKeys(spec, block.span(), selected.tokens.count, kept);
  if (!summary.ok()) return absl::FailedPreconditionError(summary.status().message());
  return SharedBytes::Take(SerializeSummary(*summary));
}

// Makes the payload of the selected part in the requested form, and the reply's facts about it.
absl::Status PageReader::MakePayload(const Wanted& wanted, const Selected& selected,
                                     const SharedBytes& header, FetchedPage& out) {
  v1::PageReply& reply = out.reply;
  KVSTOW_ASSIGN_OR_RETURN(const auto kept, KeptTokens(selected.header, selected.bodies,
                                                      {selected.layers, selected.tokens}));
  reply.set_kept_share(kept.has_value() ? kept->Share() : 1);
  if (kept.has_value()) {
    reply.mutable_kept()->set_layers(kept->layers);
    reply.mutable_kept()->set_kv_heads(kept->heads);
  }
  std::span<const uint8_t> elsewhere;  // the part of the payload that is in a sink of the host
  if (wanted.payload == v1::ENCODED) {
    out.payload = EncodedPayload(header, selected.bodies);
  } else if (wanted.payload == v1::SUMMARY) {
    KVSTOW_ASSIGN_OR_RETURN(out.payload.emplace_back(),
                            SummaryPayload(wanted, selected, kept.has_value() ? &*kept : nullptr));
  } else if (wanted.sink != nullptr) {
    KVSTOW_RETURN_IF_ERROR(RawPayloadTo(wanted, selected, *wanted.sink));
    reply.set_payload_bytes(selected.RawBytes());
    const std::span<const uint8_t> memory = wanted.sink->on_host();
    elsewhere = memory.first(std::min<size_t>(memory.size(), selected.RawBytes()));
  } else {
    KVSTOW_ASSIGN_OR_RETURN(out.payload, RawPayload(wanted, selected));
  }
  if (kept.has_value() && wanted.payload == v1::RAW) {
    out.payload.push_back(KeptPayload(*kept));
    reply.mutable_kept()->set_bytes(out.payload.back().size());
  }
  for (const SharedBytes& part : out.payload) {
    reply.set_payload_bytes(reply.payload_bytes() + part.size());
  }
  if (!HasOwnDigest(wanted.payload, selected.header, wanted.request)) {
    SetDigest(elsewhere, out.payload, reply);
  }
  return absl::OkStatus();
}

// Says in `number` which page it read.
absl::Status PageReader::FetchInto(const Wanted& wanted, PageNumber& number, FetchedPage& out) {
  const Space& space = wanted.space;
  const v1::GetPage& request = wanted.request;
  KVSTOW_ASSIGN_OR_RETURN(const LayerRange layers, LayersOf(space.spec, request));
  const PageName name{.space = space.id, .key = request.key()};
  KVSTOW_ASSIGN_OR_RETURN(const PageFacts facts, store_.residency().Find(name));
  number = facts.number;
  KVSTOW_ASSIGN_OR_RETURN(const PageHeader header, CheckedHeader(space, request, facts));

  const size_t segments = SegmentsForLevels(header, request.max_levels());
  KVSTOW_ASSIGN_OR_RETURN(const TokenRange tokens, TokensOf(header, wanted.payload, request));
  Selected selected{.header = header, .layers = layers, .tokens = tokens, .bodies = {}};
  selected.bodies.resize(std::min(segments, facts.segments.size()));
  KVSTOW_RETURN_IF_ERROR(CheckFidelity(selected, request));
  // A digest that is made here cannot find damage in memory: then the store checks.
  const Checks checks =
      HasOwnDigest(wanted.payload, header, request) ? wanted.checks : Checks::kStore;
  if (const absl::Status read = ReadSegments(name, facts, checks, selected); !read.ok()) {
    const auto now = store_.residency().Find(name);
    const bool replaced = now.ok() && now->number != facts.number;
    return replaced ? absl::AbortedError("the page was replaced while it was read") : read;
  }

  // Some of it may have proved damaged.
  KVSTOW_RETURN_IF_ERROR(CheckFidelity(selected, request));
  KVSTOW_RETURN_IF_ERROR(MakePayload(wanted, selected, facts.header, out));
  const size_t used = selected.bodies.size();
  v1::PageReply& reply = out.reply;
  reply.set_tokens(tokens.count);
  reply.set_first_position(header.first_position + tokens.first);
  if (!facts.tiers.empty()) reply.set_tier(TierName(facts.tiers.front()));
  reply.set_recipe(header.pipeline);
  reply.set_exact(header.exact);
  reply.set_levels(WholeLevels(header, used, layers));
  reply.set_levels_stored(LevelsOf(header));
  reply.set_estimated_error(ErrorLeft(header, used, layers));
  reply.set_stored_bytes(facts.stored_bytes());
  reply.set_raw_digest(AsString(header.raw_digest.bytes).data(), header.raw_digest.bytes.size());
  return absl::OkStatus();
}

// The page of that number proved damaged: its bad copies go, and what the name has then is read
// once more, each byte checked by the store. `damage` is the answer when that is nothing.
absl::Status PageReader::FetchGoodCopy(Wanted wanted, PageNumber number, const absl::Status& damage,
                                       FetchedPage& out) {
  const PageName name{.space = wanted.space.id, .key = wanted.request.key()};
  store_.Examine(name, number).IgnoreError();
  out = {};
  wanted.checks = Checks::kStore;
  const absl::Status s = FetchInto(wanted, number, out);
  if (absl::IsNotFound(s)) return damage;
  // These are the bytes that were put, and they do not decode. They never will.
  if (absl::IsDataLoss(s)) store_.Drop(name, number).IgnoreError();
  return s;
}

// FetchInto with its status as a typed outcome.
void PageReader::FetchChecked(const Wanted& wanted, FetchedPage& out) {
  PageNumber number = 0;
  absl::Status s = FetchInto(wanted, number, out);
  // It got its cold form between being found and being read: that happens once.
  if (absl::IsAborted(s)) s = FetchInto(wanted, number, out);
  if (absl::IsDataLoss(s)) s = FetchGoodCopy(wanted, number, s, out);
  if (absl::IsUnimplemented(s)) {
    // While it is there, the same page is not stored once more in a form that is read here.
    store_.Drop({.space = wanted.space.id, .key = wanted.request.key()}, number).IgnoreError();
    s = absl::NotFoundError(s.message());
  }
  if (s.ok()) {
    out.reply.set_status(v1::HIT);
    return;
  }
  out = {};
  out.reply.set_status(GetOutcome(s));
  out.reply.set_message(std::string(s.message()));
  if (absl::IsDataLoss(s)) metrics_.CountCorrupt();
}

bool PageReader::IsFar(const Space& space, const std::string& key) const {
  return remote_ != nullptr && remote_->on() &&
         !store_.residency().Find({.space = space.id, .key = key}).ok() &&
         remote_->MayFetch(space, key);
}

// Answers a caller that may have no page now.
bool PageReader::Refuses(const Asking& by, FetchedPage& out) {
  const absl::Status may = tenants_ == nullptr ? absl::OkStatus() : tenants_->CheckGet(by.tenant);
  if (!may.ok()) {
    out.reply.set_status(v1::UNAVAILABLE);
    out.reply.set_message(std::string(may.message()));
    metrics_.CountRefusedCall("tenant_get_rate");
    return true;
  }
  if (by.lease.id == 0 || store_.residency().Renew(by.lease)) return false;
  out.reply.set_status(v1::EXPIRED);
  out.reply.set_message(
      absl::StrCat("lease ", by.lease.id, " has run out: look the pages up again"));
  return true;
}

FetchedPage PageReader::Counted(const Space& space, const Asking& by, const v1::GetPage& request,
                                Time begin, FetchedPage out) {
  const v1::PageReply& reply = out.reply;
  out.reply.set_key(request.key());
  if (tenants_ != nullptr) tenants_->TakeGet(by.tenant, reply.payload_bytes());
  metrics_.CountGet(reply.status(), reply.tier(), reply.payload_bytes());
  metrics_.NotePage(StreamKind::kGet, space.name, reply.status(), begin);
  return out;
}

PageReader::Brought PageReader::Bring(const Space& space, const Asking& by,
                                      const v1::GetPage& request) {
  if (!IsFar(space, request.key())) return {};
  const Time begin = Clock::Real().Now();
  FetchedPage out;
  if (!Refuses(by, out)) {
    if (remote_->Fetch(space, request.key()).ok()) return {.answer = nullptr, .since = begin};
    // Somebody may have put it meanwhile.
    const auto here = store_.residency().Find({.space = space.id, .key = request.key()});
    if (here.ok()) return {};
    out.reply.set_status(GetOutcome(here.status()));
    out.reply.set_message(std::string(here.status().message()));
  }
  out = Counted(space, by, request, begin, std::move(out));
  return {.answer = std::make_unique<FetchedPage>(std::move(out)), .since = std::nullopt};
}

FetchedPage PageReader::Fetch(const Asking& by, const Wanted& wanted,
                              std::optional<Time> far_since) {
  const Time begin = far_since.value_or(Clock::Real().Now());
  FetchedPage out;
  if (!Refuses(by, out)) {
    const PageName name{.space = wanted.space.id, .key = wanted.request.key()};
    if (by.lease.id == 0 && !wanted.request.again()) store_.residency().Use(name);
    FetchChecked(wanted, out);
    const bool hit = out.reply.status() == v1::HIT;
    if (remote_ != nullptr && hit) remote_->Use(name);
    if (far_since.has_value() && hit) out.reply.set_tier("remote");
  }
  return Counted(wanted.space, by, wanted.request, begin, std::move(out));
}

FetchedPage PageReader::Fetch(const Space& space, const Asking& by, v1::Payload payload,
                              const v1::GetPage& request, Checks checks,
                              std::optional<Time> far_since) {
  return Fetch(by, {space, payload, request, nullptr, checks}, far_since);
}

FetchedPage PageReader::FetchTo(const Space& space, const Asking& by, const v1::GetPage& request,
                                PageSink& out, std::optional<Time> far_since) {
  return Fetch(by, {space, v1::RAW, request, &out}, far_since);
}

v1::PageReply PageReader::Check(const Space& space, const v1::GetPage& request) {
  FetchedPage out;
  FetchChecked({space, v1::RAW, request}, out);
  return std::move(out.reply);
}

}  // namespace kvstow
