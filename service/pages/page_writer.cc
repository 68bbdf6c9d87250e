#include "service/pages/page_writer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/decode_page.h"
#include "kernels/page/encoded_payload.h"
#include "kernels/page/page.h"
#include "service/pages/attention_columns.h"
#include "service/pages/encoded_put.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

void Describe(const PageHeader& header, uint64_t stored_bytes, Ack ack, v1::PutResult& result) {
  result.set_recipe(header.pipeline);
  result.set_fell_back(header.fell_back);
  result.set_stored_bytes(stored_bytes);
  result.set_ack(AckToProto(ack));
}

PageToStore ToStore(PageName name, const Digest128& digest, EncodedPage page, uint64_t raw_bytes,
                    bool hot, Ack ack) {
  PageToStore out;
  out.name = std::move(name);
  out.header = page.header_bytes;
  out.raw_digest = digest;
  out.raw_bytes = raw_bytes;
  out.first_position = page.header.first_position;
  out.tokens = page.header.tokens;
  out.whole = page.header.exact;
  out.hot = hot;
  out.facts = FactsOf(page.header);
  out.bodies = std::move(page.segments);
  out.ack = ack;
  return out;
}

constexpr size_t kCopyPieceBytes = 256 << 10;  // stays in a core's cache

// Copies a page that another process may change. Digests the copy piece by piece, as it is made.
SharedBytes CopyOf(const Space& space, const v1::PutPage& page, std::span<const uint8_t> bytes,
                   PageDigests& digests) {
  ByteBlock copy(bytes.size());
  PageDigester digester(ExactRunBytes(*space.codec, page.tokens()));
  const size_t body = PageBytes(space.spec, page.tokens());
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = at < body ? body : bytes.size();
    const auto piece = copy.span().subspan(at, std::min(end - at, kCopyPieceBytes));
    std::memcpy(piece.data(), bytes.data() + at, piece.size());
    if (at < body) digester.Update(piece);
    at += piece.size();
  }
  digests = digester.Finish();
  return std::move(copy).Share();
}

}  // namespace

v1::PutResult Refused(absl::string_view why) {
  v1::PutResult result;
  result.set_status(v1::REFUSED);
  result.set_message(std::string(why));
  return result;
}

v1::PutResult NotCompatible(const absl::Status& why) {
  v1::PutResult result = Refused(why.message());
  result.set_status(v1::NOT_COMPATIBLE);
  return result;
}

PageWriter::PageWriter(TieredStore& store, AttentionReports& reports, Metrics& metrics,
                       bool has_disk, RemoteTier* remote)
    : store_(store),
      reports_(reports),
      metrics_(metrics),
      default_ack_(has_disk ? Ack::kProcess : Ack::kMemory),
      remote_(remote) {}

Ack PageWriter::AckOf(const v1::PutPage& page) const {
  return AckFromProto(page.ack(), default_ack_).value_or(default_ack_);
}

absl::Status PageWriter::Check(const Space& space, v1::Payload payload,
                               const v1::PutPage& page) const {
  if (page.key().empty() || page.key().size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key has ", page.key().size(), " bytes: a key has 1 to ", kMaxKeyBytes));
  }
  if (page.tokens() == 0 || page.tokens() > space.spec.page_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokens is ", page.tokens(), ": a page of this space has 1 to ", space.spec.page_tokens));
  }
  KVSTOW_RETURN_IF_ERROR(CheckColumns(space.spec, page));
  const uint64_t raw = PageBytes(space.spec, page.tokens()), columns = ColumnBytes(page);
  if (payload == v1::ENCODED) {
    if (page.payload_bytes() <= columns ||
        page.payload_bytes() > raw + columns + kEncodedOverhead) {
      return absl::InvalidArgumentError(
          absl::StrCat("payload_bytes is ", page.payload_bytes(),
                       ": an encoded page takes at most ", kEncodedOverhead,
                       " bytes more than the raw one, here ", raw, ", and its columns ", columns));
    }
  } else if (page.payload_bytes() != raw + columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("payload_bytes is ", page.payload_bytes(), ": ", page.tokens(),
                     " tokens of this space have ", raw,
                     columns > 0 ? absl::StrCat(" and their columns ", columns) : ""));
  }
  if (!page.digest().empty() && page.digest().size() != sizeof(Digest128)) {
    return absl::InvalidArgumentError(absl::StrCat("digest has ", page.digest().size(),
                                                   " bytes: XXH3-128 has ", sizeof(Digest128)));
  }
  KVSTOW_ASSIGN_OR_RETURN(const Ack ack, AckFromProto(page.ack(), default_ack_));
  if (ack > Ack::kMemory && default_ack_ == Ack::kMemory) {
    return absl::InvalidArgumentError(
        "ack: this server has no disk tier, so nothing outlives it: start it with --disk-path, or "
        "ask for MEMORY");
  }
  return absl::OkStatus();
}

std::optional<v1::PutResult> PageWriter::AlreadyThere(const Space& space,
                                                      const v1::PutPage& page) const {
  if (page.digest().empty()) return std::nullopt;
  return AlreadyThere(space, page, AsBytes(page.digest()));
}

std::optional<v1::PutResult> PageWriter::AlreadyThere(const Space& space, const v1::PutPage& page,
                                                      std::span<const uint8_t> raw_digest) const {
  const PageName name{.space = space.id, .key = page.key()};
  const auto facts = store_.residency().Find(name);
  if (!facts.ok() || !std::ranges::equal(facts->raw_digest.bytes, raw_digest) ||
      facts->ack < AckOf(page)) {
    return std::nullopt;
  }
  const auto header = ParsePageHeader(facts->header.span());
  if (!header.ok()) return std::nullopt;
  v1::PutResult result;
  Describe(*header, facts->stored_bytes(), facts->ack, result);
  result.set_status(v1::ALREADY_THERE);
  store_.residency().Use(name);
  return result;
}

absl::StatusOr<EncodedPage> PageWriter::Encode(const Space& space, const v1::PutPage& page,
                                               const SharedBytes& raw, const PageDigests& digests,
                                               const AttentionColumns& columns,
                                               const PageCoder& coder) {
  const Time begin = Clock::Real().Now();
  const PageToEncode to_encode{.raw = raw.span(),
                               .tokens = page.tokens(),
                               .first_position = page.first_position(),
                               .key = page.key(),
                               .raw_digest = digests.page,
                               .run_digests = digests.runs,
                               // With columns behind it, more would stay than is counted.
                               .raw_owner = ColumnBytes(page) == 0 ? raw.owner() : nullptr,
                               .columns = &columns};
  auto encoded = coder ? coder(to_encode) : space.codec->Encode(to_encode);
  metrics_.ObserveEncode(Clock::Real().Now() - begin, raw.size());
  return encoded;
}

v1::PutResult PageWriter::Write(const Space& space, v1::Payload payload, const v1::PutPage& page,
                                const SharedBytes& bytes, std::string parent_key,
                                const PageCoder& coder, const std::optional<PageDigests>& came) {
  const SharedBytes body = bytes.Slice(0, bytes.size() - ColumnBytes(page));
  const auto columns = ReadColumns(space.spec, page, bytes.span().subspan(body.size()));
  if (!columns.ok()) return Refused(columns.status().message());
  if (payload == v1::ENCODED) {
    return Store(space, payload, page, CheckedEncodedPage(space, page, body.span()), *columns,
                 std::move(parent_key));
  }
  const bool may_change = bytes.owner() == nullptr;
  if (may_change && space.codec->exact()) {
    return WriteCopy(space, page, bytes, std::move(parent_key), coder);
  }
  const PageDigests digests = came.has_value() ? *came : PageDigests{Xxh3_128(body.span()), {}};
  if (!page.digest().empty() &&
      !std::ranges::equal(AsBytes(page.digest()), std::span(digests.page.bytes))) {
    return Refused(absl::StrCat("digest: the page came as ", digests.page.Hex(),
                                ", but was sent as ", HexOf(AsBytes(page.digest())),
                                ": it was damaged on its way; send it again"));
  }
  if (auto there = AlreadyThere(space, page, digests.page.bytes)) return *std::move(there);
  auto encoded = Encode(space, page, body, digests, *columns, coder);
  if (may_change && encoded.ok() && encoded->header.fell_back) {
    return WriteCopy(space, page, bytes, std::move(parent_key), coder);
  }
  return Store(space, payload, page, std::move(encoded), *columns, std::move(parent_key));
}

v1::PutResult PageWriter::WriteCopy(const Space& space, const v1::PutPage& page,
                                    const SharedBytes& bytes, std::string parent_key,
                                    const PageCoder& coder) {
  PageDigests digests;
  const SharedBytes copy = CopyOf(space, page, bytes.span(), digests);
  return Write(space, v1::RAW, page, copy, std::move(parent_key), coder, digests);
}

// Returns whether the stored bytes, as far as they are still there, are this page's very bytes.
// Equal digests are no proof: one of two pages may have been made to have the other's.
bool PageWriter::IsStored(const PageName& name, const PageFacts& there,
                          const EncodedPage& page) const {
  const auto header = ParsePageHeader(there.header.span());
  if (!header.ok() || header->segments != page.header.segments) return false;
  std::vector<uint16_t> indices(there.segments.size());
  std::iota(indices.begin(), indices.end(), uint16_t{0});
  const auto bodies = store_.Read(name, there.number, indices);
  for (size_t i = 0; i < bodies.size(); ++i) {
    if (!bodies[i].ok() || !std::ranges::equal(bodies[i]->span(), page.segments[i].span())) {
      return false;
    }
  }
  return true;
}

// The digest by which the store tells pages of one name apart. A page whose raw digest the server
// did not make goes by its content digest, so that an honest page with that raw digest is another
// one: a CONFLICT. Both are the same page where the bytes are the same, or where a word is about a
// page that is there honestly.
Digest128 PageWriter::StoredDigest(const PageName& name, v1::Payload payload,
                                   const EncodedPage& page) const {
  const PageHeader& header = page.header;
  const bool word = payload == v1::ENCODED && !header.exact;
  const Digest128 content = ContentDigest(header);
  const auto there = store_.residency().Find(name);
  if (there.ok() && there->raw_digest == content) {
    return IsStored(name, *there, page) ? content : header.raw_digest;
  }
  if (word && there.ok() && there->raw_digest == header.raw_digest) return header.raw_digest;
  return word ? content : header.raw_digest;
}

v1::PutResult PageWriter::Store(const Space& space, v1::Payload payload, const v1::PutPage& page,
                                absl::StatusOr<EncodedPage> encoded,
                                const AttentionColumns& columns, std::string parent_key) {
  if (!encoded.ok()) return Refused(encoded.status().message());
  v1::PutResult result;
  Describe(encoded->header, encoded->StoredBytes(), AckOf(page), result);
  // A page that was kept exactly would be kept so again.
  const bool hot = space.cold != nullptr && !encoded->header.fell_back;
  const PageName name{.space = space.id, .key = page.key()};
  const Digest128 digest = StoredDigest(name, payload, *encoded);
  PageToStore to_store = ToStore(name, digest, *std::move(encoded),
                                 PageBytes(space.spec, page.tokens()), hot, AckOf(page));
  to_store.parent_key = parent_key;
  const auto outcome = store_.Put(std::move(to_store));
  if (!outcome.ok()) return Refused(outcome.status().message());
  switch (*outcome) {
    case PutOutcome::kStored:
      result.set_status(v1::STORED);
      reports_.TakePut(space, page, columns);
      if (remote_ != nullptr) remote_->Offer(name, parent_key);
      break;
    case PutOutcome::kAlreadyThere:
      result.set_status(v1::ALREADY_THERE);
      break;
    case PutOutcome::kConflict:
      result.Clear();
      result.set_status(v1::CONFLICT);
      result.set_message("the key holds other content, which was kept");
      break;
  }
  return result;
}

}  // namespace kvstow
