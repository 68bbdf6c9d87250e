#include "service/transports/local_requests.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "kernels/codec/decode_page.h"
#include "kernels/page/page_to_encode.h"
#include "proto/wire/local_socket.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

// An answer holds little beside this, and must fit into a message.
constexpr size_t kMaxKeptBytes = kMaxLocalMessageBytes - (8 << 10);

v1::LocalGot NoPage(const v1::GetPage& request, v1::PageStatus status, absl::string_view why) {
  v1::LocalGot got;
  got.set_page(request.page());
  got.mutable_reply()->set_key(request.key());
  got.mutable_reply()->set_status(status);
  got.mutable_reply()->set_message(std::string(why));
  return got;
}

absl::Status CheckPages(int pages) {
  if (pages >= 1 && static_cast<size_t>(pages) <= kMaxLocalPages) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", pages, " pages: it has 1 to ", kMaxLocalPages));
}

}  // namespace

absl::Status LocalRequests::Handle(const v1::LocalRequest& request, Reply reply) {
  if (!parts_.access->Knows(caller_)) {
    constexpr char kGone[] = "a local session of an identity that is gone";
    parts_.access->CountRefusal(Refusal::kTicket, kGone);
    return absl::UnavailableError(kGone);
  }
  switch (request.kind_case()) {
    case v1::LocalRequest::kAllocate:
      return Allocate(request.allocate(), reply);
    case v1::LocalRequest::kFree:
      return slots_.Free(request.free().slot());
    case v1::LocalRequest::kGet:
      return Get(request.get(), reply);
    case v1::LocalRequest::kPut:
      return Put(request.put(), reply);
    default:
      return absl::InvalidArgumentError("a message that is no request of an open session");
  }
}

absl::Status LocalRequests::Allocate(const v1::LocalAllocate& request, Reply reply) {
  v1::LocalReply answer;
  v1::LocalSlot& out = *answer.mutable_slot();
  out.set_request(request.request());
  const auto slot = slots_.Allocate(request.bytes());
  if (slot.ok()) {
    out.mutable_slot()->set_index(slot->index);
    out.mutable_slot()->set_generation(slot->generation);
    out.set_offset(slot->offset);
    out.set_bytes(slot->bytes);
  } else {
    out.set_message(std::string(slot.status().message()));
  }
  return reply(answer);
}

absl::Status LocalRequests::Get(const v1::LocalGet& request, Reply reply) {
  KVSTOW_RETURN_IF_ERROR(CheckPages(request.pages_size()));
  static_assert(RightOf("/kvstow.v1.KvCache/Get").least == Role::kReader);  // every role
  const auto space =
      parts_.spaces.Find(*caller_, request.space(), request.fingerprint(), SpaceUse::kRead);
  const Asking by{.tenant = caller_->tenant, .lease = {request.lease(), HolderOf(*caller_)}};
  for (const v1::LocalGetPage& page : request.pages()) {
    KVSTOW_RETURN_IF_ERROR(CheckRequest(page.page()));
    v1::LocalReply answer;
    *answer.mutable_got() = space.ok()
                                ? GetPage(**space, by, page)
                                : NoPage(page.page(), v1::NOT_COMPATIBLE, space.status().message());
    KVSTOW_RETURN_IF_ERROR(reply(answer));
  }
  return absl::OkStatus();
}

v1::LocalGot LocalRequests::GetPage(const Space& space, const Asking& by,
                                    const v1::LocalGetPage& request) {
  parts_.metrics.CountLocal(StreamKind::kGet);
  const PageReader::Brought brought = parts_.reader.Bring(space, by, request.page());
  if (brought.answer != nullptr) {
    const v1::PageReply& reply = brought.answer->reply;
    return NoPage(request.page(), reply.status(), reply.message());
  }
  absl::StatusOr<Admission::Bytes> held;
  if (request.has_gpu_to()) {  // what the GPU does not decode is decoded beside its memory
    held = parts_.admission.TakeGet(FetchBytes(space, request.page()),
                                    PayerOf(parts_.puts.tenants, by.tenant));
    if (!held.ok()) return NoPage(request.page(), v1::UNAVAILABLE, held.status().message());
  }
  auto page = FetchTo(space, by, request, brought.since);
  if (!page.ok()) return NoPage(request.page(), v1::NOT_COMPATIBLE, page.status().message());
  v1::LocalGot got;
  got.set_page(request.page().page());
  if (page->reply.kept().bytes() <= kMaxKeptBytes) {  // else the worker must ask over a stream
    for (const SharedBytes& part : page->payload) {
      const absl::string_view bytes = AsString(part.span());
      got.mutable_kept()->append(bytes.data(), bytes.size());
    }
  }
  *got.mutable_reply() = std::move(page->reply);
  return got;
}

// An error is about the place that the request names.
absl::StatusOr<FetchedPage> LocalRequests::FetchTo(const Space& space, const Asking& by,
                                                   const v1::LocalGetPage& request,
                                                   std::optional<Time> far_since) {
  if (request.has_gpu_to()) {
    KVSTOW_ASSIGN_OR_RETURN(GpuPage to, PageAt(space, request.gpu_to()));
    FetchedPage page = parts_.reader.FetchTo(space, by, request.page(), to, far_since);
    parts_.metrics.CountLocalGpu(StreamKind::kGet, to.coded_there());
    return page;
  }
  KVSTOW_ASSIGN_OR_RETURN(const SlotTable::Range to, slots_.Use(request.to()));
  HostSink sink(to.bytes());
  return parts_.reader.FetchTo(space, by, request.page(), sink, far_since);
}

absl::StatusOr<GpuPage> LocalRequests::PageAt(const Space& space, const v1::GpuRange& range) {
  if (gpu_memory_ == nullptr) {
    return absl::FailedPreconditionError("the session has no memory on the GPU");
  }
  if (range.offset() % kSharedPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a range on the GPU begins at ", range.offset(),
                                                   ", not at a multiple of ", kSharedPageBytes));
  }
  return GpuPage::At(*parts_.gpu, space, gpu_memory_, range.offset(), range.bytes());
}

absl::StatusOr<std::shared_ptr<const Space>> LocalRequests::SpaceToPut(
    const v1::LocalPut& request) {
  KVSTOW_RETURN_IF_ERROR(parts_.access->MayCall(*caller_, RightOf("/kvstow.v1.KvCache/Put")));
  return parts_.spaces.Find(*caller_, request.space(), request.fingerprint(), SpaceUse::kWrite);
}

absl::Status LocalRequests::Put(const v1::LocalPut& request, Reply reply) {
  KVSTOW_RETURN_IF_ERROR(CheckPages(request.pages_size()));
  const auto space = SpaceToPut(request);
  for (const v1::LocalPutPage& page : request.pages()) {
    v1::LocalReply answer;
    v1::PutResult& result = *answer.mutable_put();
    if (space.ok()) {
      result = PutPage(**space, page);
    } else {
      result = NotCompatible(space.status());
      parts_.metrics.CountPut(result.status(), 0, 0);
    }
    result.set_page(page.number());
    parts_.metrics.CountLocal(StreamKind::kPut);
    KVSTOW_RETURN_IF_ERROR(reply(answer));
  }
  return absl::OkStatus();
}

v1::PutResult LocalRequests::PutPage(const Space& space, const v1::LocalPutPage& request) {
  IncomingPage page(parts_.puts, space, caller_->tenant, v1::RAW, request.page(),
                    request.parent_key());
  if (request.page().columns_size() > 0) {
    return page.Refuse("columns: pages with columns need a stream");
  }
  const uint64_t from_bytes =
      request.has_gpu_from() ? request.gpu_from().bytes() : request.from().bytes();
  if (request.page().payload_bytes() != from_bytes) {
    return page.Refuse(absl::StrCat("payload_bytes is ", request.page().payload_bytes(),
                                    ", the slot's range ", from_bytes));
  }
  if (auto answer = page.Begin()) return *std::move(answer);
  if (const absl::Status s = page.Admit(); !s.ok()) return page.Refuse(s.message());
  if (request.has_gpu_from()) return PutFromGpu(space, request.gpu_from(), page);
  const auto from = slots_.Use(request.from());
  if (!from.ok()) return page.Refuse(from.status().message());
  // Without an owner: the worker may write to it at any time (PageWriter::Write).
  return page.Store(SharedBytes(nullptr, from->bytes()));
}

// The host makes the digest, of a copy that the worker cannot change. It codes that copy where the
// GPU does not code.
v1::PutResult LocalRequests::PutFromGpu(const Space& space, const v1::GpuRange& range,
                                        IncomingPage& page) {
  auto from = PageAt(space, range);
  if (!from.ok()) return page.Refuse(from.status().message());
  const auto raw = from->Take();
  if (!raw.ok()) return page.Refuse(raw.status().message());
  v1::PutResult result =
      page.Store(*raw, [&](const PageToEncode& to_encode) { return from->Encode(to_encode); });
  parts_.metrics.CountLocalGpu(StreamKind::kPut, from->coded_there());
  return result;
}

}  // namespace kvstow
