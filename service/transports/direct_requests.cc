#include "service/transports/direct_requests.h"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/page/encoded_payload.h"
#include "service/operators/lookup_wire.h"
#include "service/pages/attention_columns.h"
#include "service/pages/encoded_put.h"

namespace kvstow {
namespace {

// As much as a stream sends at a time.
constexpr uint64_t kPieceBytes = 1 << 20;

absl::Status CheckPayload(v1::Payload payload) {
  if (payload == v1::RAW || payload == v1::ENCODED) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("payload: ", static_cast<int>(payload),
                   " does not go over a direct connection: ask for it over a stream"));
}

// The payload of a page, cut into pieces; one at least.
std::vector<std::vector<SharedBytes>> InPieces(std::span<const SharedBytes> payload) {
  std::vector<std::vector<SharedBytes>> pieces(1);
  uint64_t room = kPieceBytes;
  for (const SharedBytes& part : payload) {
    for (size_t at = 0; at < part.size();) {
      if (room == 0) {
        pieces.emplace_back();
        room = kPieceBytes;
      }
      const size_t bytes = std::min<uint64_t>(room, part.size() - at);
      pieces.back().push_back(part.Slice(at, bytes));
      at += bytes;
      room -= bytes;
    }
  }
  return pieces;
}

}  // namespace

Time DirectRequests::Deadline(uint64_t bytes) const {
  return Clock::Real().Now() + patience_ + std::chrono::microseconds(bytes);
}

absl::Status DirectRequests::ServeOne(Time until) {
  v1::DirectRequest request;
  uint64_t payload_bytes = 0;
  KVSTOW_RETURN_IF_ERROR(
      socket_.ReceiveFrame(request, payload_bytes, std::min(until, Deadline(0))));
  if (request.has_hello() && payload_bytes == 0) return Hello(request.hello());
  KVSTOW_RETURN_IF_ERROR(CheckCaller());
  if (request.has_put()) return Put(*request.mutable_put(), payload_bytes);
  if (payload_bytes != 0 || (!request.has_get() && !request.has_lookup())) {
    return absl::InvalidArgumentError("a frame that is neither a get nor a put with its page");
  }
  // Every role may do these.
  static_assert(RightOf("/kvstow.v1.KvCache/Get").least == Role::kReader);
  static_assert(RightOf("/kvstow.v1.KvCache/Lookup").least == Role::kReader);
  return request.has_get() ? Get(request.get()) : Lookup(request.lookup());
}

CallerPtr DirectRequests::caller() const {
  MutexLock lock(mu_);
  return caller_;
}

// Has no answer: the worker need not wait for one, and learns by being hung up on.
absl::Status DirectRequests::Hello(const v1::DirectHello& hello) {
  if (!parts_.access->has_identities()) return absl::OkStatus();  // everybody may come
  CallerPtr caller = parts_.tickets->Take(hello.ticket());
  if (caller == nullptr || this->caller() != nullptr) {
    constexpr char kWhy[] = "a direct connection with a ticket that is unknown, used or too old";
    parts_.access->CountRefusal(Refusal::kTicket, kWhy);
    return absl::UnavailableError(kWhy);
  }
  MutexLock lock(mu_);
  caller_ = std::move(caller);
  return absl::OkStatus();
}

absl::Status DirectRequests::CheckCaller() {
  const CallerPtr caller = this->caller();
  if (caller != nullptr && parts_.access->Knows(caller)) return absl::OkStatus();
  const char* const why = caller == nullptr ? "a direct connection without a ticket"
                                            : "a direct connection of an identity that is gone";
  parts_.access->CountRefusal(Refusal::kTicket, why);
  return absl::UnavailableError(why);
}

// The rest of the request is not served; what goes wrong with it on a stream is told there.
absl::Status DirectRequests::Refuse(const absl::Status& why) {
  v1::DirectReply reply;
  reply.mutable_refused()->set_code(static_cast<int>(why.code()));
  reply.mutable_refused()->set_message(std::string(why.message()));
  return socket_.Send(reply, {}, 0, Deadline(0));
}

absl::Status DirectRequests::Lookup(const std::string& request) {
  const grpc::Slice message(request.data(), request.size(), grpc::Slice::STATIC_SLICE);
  const auto query = ReadLookupRequest(message);
  if (!query.ok()) return Refuse(query.status());
  auto match = parts_.op.Lookup(*caller(), *query);
  if (!match.ok()) return Refuse(match.status());
  const auto whole = std::make_shared<std::promise<PrefixMatch>>();
  parts_.op.Extend(*caller(), *query, *std::move(match),
                   [whole](const PrefixMatch& m) { whole->set_value(m); });
  const grpc::Slice answer = WriteLookupResponse(whole->get_future().get());
  if (answer.size() > kMaxDirectMessageBytes / 2) {
    return Refuse(absl::ResourceExhaustedError("too many keys for a direct connection"));
  }
  v1::DirectReply reply;
  reply.set_looked_up(answer.begin(), answer.size());
  const absl::Status sent = socket_.Send(reply, {}, 0, Deadline(0));
  parts_.op.CatchUp();  // statistics wait until the answer is on its way
  return sent;
}

absl::Status DirectRequests::Get(const v1::DirectGet& request) {
  if (static_cast<size_t>(request.pages_size()) > kMaxDirectPages) {
    return absl::InvalidArgumentError(absl::StrCat(
        request.pages_size(), " pages in one message: at most ", kMaxDirectPages, " may be"));
  }
  for (const v1::GetPage& page : request.pages()) KVSTOW_RETURN_IF_ERROR(CheckRequest(page));
  const CallerPtr caller = this->caller();
  const auto space =
      parts_.spaces.Find(*caller, request.space(), request.fingerprint(), SpaceUse::kRead);
  if (!space.ok()) return Refuse(space.status());
  const Asking by{.tenant = caller->tenant, .lease = {request.lease(), HolderOf(*caller)}};
  const auto payer = PayerOf(parts_.puts.tenants, caller->tenant);
  if (const absl::Status s = CheckPayload(request.payload()); !s.ok()) return Refuse(s);
  const Checks checks = request.checked() ? Checks::kReader : Checks::kStore;
  for (const v1::GetPage& page : request.pages()) {
    PageReader::Brought brought = parts_.reader.Bring(**space, by, page);
    absl::StatusOr<Admission::Bytes> held;
    FetchedPage fetched;
    if (brought.answer != nullptr) {
      fetched = std::move(*brought.answer);
    } else {
      held = parts_.admission.TakeGet(FetchBytes(**space, page), payer);
      if (!held.ok()) return Refuse(held.status());
      fetched = parts_.reader.Fetch(**space, by, request.payload(), page, checks, brought.since);
      held->Resize(fetched.reply.payload_bytes());
    }
    parts_.metrics.CountDirect(StreamKind::kGet);
    v1::DirectReply reply;
    *reply.mutable_got() = std::move(fetched.reply);
    KVSTOW_RETURN_IF_ERROR(SendPage(reply, fetched.payload));
  }
  return absl::OkStatus();
}

absl::Status DirectRequests::SendPage(const v1::DirectReply& reply,
                                      std::span<const SharedBytes> payload) {
  sending_since_ = parts_.clock->Now();
  const absl::Status sent = SendPieces(reply, payload);
  sending_since_ = kNotSending;
  return sent;
}

absl::Status DirectRequests::SendPieces(const v1::DirectReply& reply,
                                        std::span<const SharedBytes> payload) {
  const uint64_t bytes = reply.got().payload_bytes();
  const Time deadline = Deadline(bytes);
  const std::vector<std::vector<SharedBytes>> pieces = InPieces(payload);
  const uint64_t more = bytes - std::min(bytes, kPieceBytes);
  KVSTOW_RETURN_IF_ERROR(socket_.Send(reply, pieces[0], more, deadline));
  for (const std::vector<SharedBytes>& piece : std::span(pieces).subspan(1)) {
    sending_since_ = parts_.clock->Now();
    KVSTOW_RETURN_IF_ERROR(socket_.SendBytes(piece, deadline));
  }
  return absl::OkStatus();
}

absl::Status DirectRequests::Put(v1::DirectPut& request, uint64_t payload_bytes) {
  v1::PutPage& page = *request.mutable_page();
  const uint64_t behind = page.digest().empty() ? sizeof(Digest128) : 0;
  if (payload_bytes < behind || payload_bytes - behind != page.payload_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a put of ", page.payload_bytes(), " bytes in a frame of ", payload_bytes));
  }
  const CallerPtr caller = this->caller();
  const auto space =
      parts_.spaces.Find(*caller, request.space(), request.fingerprint(), SpaceUse::kWrite);
  absl::Status status = parts_.access->MayCall(*caller, RightOf("/kvstow.v1.KvCache/Put"));
  if (status.ok()) status = space.status();
  if (status.ok()) status = CheckPayload(request.payload());
  if (status.ok() && request.payload() == v1::ENCODED) status = CheckTakesEncoded(**space);
  if (status.ok()) return PutPage(**space, request, payload_bytes);
  KVSTOW_RETURN_IF_ERROR(Discard(payload_bytes, status));
  return Refuse(status);
}

absl::Status DirectRequests::Skip(uint64_t bytes) const {
  return socket_.Skip(bytes, Deadline(bytes));
}

// Discards a payload whose length nobody has checked. Hangs up on a long one.
absl::Status DirectRequests::Discard(uint64_t bytes, const absl::Status& why) const {
  return bytes > kMaxPageBytes + kEncodedOverhead ? why : Skip(bytes);
}

// Takes a page whose frame has the length that it says. Its digest may come behind the payload.
absl::Status DirectRequests::PutPage(const Space& space, v1::DirectPut& request,
                                     uint64_t payload_bytes) {
  IncomingPage page(parts_.puts, space, caller()->tenant, request.payload(),
                    std::move(*request.mutable_page()), request.parent_key());
  if (auto answer = page.Begin()) {
    const absl::Status refused = absl::InvalidArgumentError(answer->message());
    KVSTOW_RETURN_IF_ERROR(Discard(payload_bytes, refused));
    return Answer(*std::move(answer));
  }
  if (const absl::Status s = page.Admit(); !s.ok()) {
    KVSTOW_RETURN_IF_ERROR(Skip(payload_bytes));
    return Refuse(s);
  }
  KVSTOW_RETURN_IF_ERROR(page.Stage());
  const Time deadline = Deadline(payload_bytes);
  KVSTOW_RETURN_IF_ERROR(page.Fill(kDirectPieceBytes, [&](std::span<uint8_t> piece) {
    return socket_.Receive(piece, deadline);
  }));
  if (page.page().digest().empty()) {
    Digest128 behind;
    KVSTOW_RETURN_IF_ERROR(socket_.Receive(behind.bytes, deadline));
    KVSTOW_RETURN_IF_ERROR(page.SetDigest(AsString(behind.bytes)));
  }
  return Answer(page.Store());
}

absl::Status DirectRequests::Answer(v1::PutResult result) {
  parts_.metrics.CountDirect(StreamKind::kPut);
  v1::DirectReply reply;
  *reply.mutable_put() = std::move(result);
  return socket_.Send(reply, {}, 0, Deadline(0));
}

}  // namespace kvstow
