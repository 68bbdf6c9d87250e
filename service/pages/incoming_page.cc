#include "service/pages/incoming_page.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/page.h"

namespace kvstow {

IncomingPage::~IncomingPage() {
  if (ticket_ != 0) parts_.staging.Abort(ticket_);
}

v1::PutResult IncomingPage::Counted(v1::PutResult result) {
  parts_.metrics.CountPut(result.status(), RawBytes(), result.stored_bytes());
  parts_.metrics.NotePage(StreamKind::kPut, space_.name, result.status(), begin_);
  return result;
}

std::optional<v1::PutResult> IncomingPage::Begin() {
  if (const absl::Status s = parts_.writer.Check(space_, payload_, page_); !s.ok()) {
    return Refuse(s.message());
  }
  if (parent_key_.size() > kMaxKeyBytes) {
    return Refuse(absl::StrCat("parent_key has ", parent_key_.size(), " bytes: a key has 1 to ",
                               kMaxKeyBytes));
  }
  auto there = parts_.writer.AlreadyThere(space_, page_);
  if (there.has_value()) return Counted(*std::move(there));
  if (const absl::Status s = parts_.admission.CheckTakesPuts(); !s.ok()) {
    return Refuse(s.message());
  }
  if (parts_.tenants == nullptr) return std::nullopt;
  const absl::Status s = parts_.tenants->TakePut(tenant_, page_.payload_bytes());
  if (s.ok()) return std::nullopt;
  parts_.metrics.CountRefusedCall("tenant_put_rate");
  return Refuse(s.message());
}

absl::Status IncomingPage::Admit() {
  const auto payer = PayerOf(parts_.tenants, tenant_);
  KVSTOW_ASSIGN_OR_RETURN(held_, parts_.admission.TakePut(page_.payload_bytes(), payer));
  return absl::OkStatus();
}

absl::Status IncomingPage::Stage() {
  KVSTOW_ASSIGN_OR_RETURN(ticket_, parts_.staging.Begin(page_.payload_bytes()));
  if (payload_ == v1::RAW) digests_.emplace(ExactRunBytes(*space_.codec, page_.tokens()));
  return absl::OkStatus();
}

void IncomingPage::Took(std::span<const uint8_t> piece) {
  const uint64_t raw = RawBytes();
  if (digests_.has_value() && received_ < raw) {
    digests_->Update(piece.first(std::min<uint64_t>(piece.size(), raw - received_)));
  }
  received_ += piece.size();
}

absl::Status IncomingPage::Append(uint64_t offset, std::span<const uint8_t> piece) {
  KVSTOW_RETURN_IF_ERROR(parts_.staging.Append(ticket_, offset, piece));
  Took(piece);
  return absl::OkStatus();
}

absl::Status IncomingPage::Fill(size_t piece_bytes,
                                absl::FunctionRef<absl::Status(std::span<uint8_t> piece)> read) {
  return parts_.staging.Fill(ticket_, [&](std::span<uint8_t> to) {
    const size_t most = digests_.has_value() ? piece_bytes : to.size();
    while (!to.empty()) {
      const std::span<uint8_t> piece = to.first(std::min(to.size(), most));
      KVSTOW_RETURN_IF_ERROR(read(piece));
      Took(piece);
      to = to.subspan(piece.size());
    }
    return absl::OkStatus();
  });
}

absl::Status IncomingPage::SetDigest(absl::string_view digest) {
  if (digest.size() != sizeof(Digest128) || !page_.digest().empty() || !whole()) {
    return absl::InvalidArgumentError(
        "digest: a page has one, of 16 bytes, in `begin` or with its last chunk");
  }
  page_.set_digest(digest.data(), digest.size());
  return absl::OkStatus();
}

v1::PutResult IncomingPage::Store() {
  const auto bytes = parts_.staging.Finish(std::exchange(ticket_, 0));
  if (!bytes.ok()) return Refuse(bytes.status().message());
  return Store(*bytes);
}

v1::PutResult IncomingPage::Store(const SharedBytes& bytes, const PageCoder& coder) {
  begin_ = Clock::Real().Now();
  std::optional<PageDigests> came;
  if (digests_.has_value()) came = digests_->Finish();
  return Counted(
      parts_.writer.Write(space_, payload_, page_, bytes, std::move(parent_key_), coder, came));
}

}  // namespace kvstow
