#include "client/transport/local_messages.h"

#include <string>
#include <utility>

#include "base/digest.h"
#include "client/payload/messages.h"
#include "client/payload/page_landing.h"
#include "client/payload/put_payload.h"

namespace kvstow {

v1::LocalGetPage LocalRequestOf(const GetBatch& batch, size_t i) {
  v1::LocalGetPage out;
  ToProto(batch.pages[i], *out.mutable_page());
  return out;
}

v1::LocalPutPage LocalRequestOf(const PutBatch& batch, size_t i) {
  const PagePut& page = batch.pages[i];
  v1::LocalPutPage out;
  ToProto(page, *out.mutable_page());
  out.mutable_page()->set_payload_bytes(page.raw.size());
  out.set_parent_key(ParentKeyOf(batch.pages, i));
  return out;
}

std::optional<GetResult> ResultOf(const PageGet& page, const v1::LocalReply& reply) {
  const v1::LocalGot& got = reply.got();
  GetResult result = GetResultOf(got.reply());
  if (result.outcome == PageOutcome::kNotCompatible) return std::nullopt;
  if (result.outcome != PageOutcome::kHit) {
    result.bytes = 0;
    return result;
  }
  if (result.bytes > page.out.size()) return std::nullopt;
  const bool has_list = got.reply().kept().bytes() > 0;
  if (!page.on_gpu || has_list) {
    Xxh3Stream digest;
    if (!page.on_gpu) digest.Update(page.out.first(result.bytes));
    digest.Update(AsBytes(got.kept()));
    const std::string due = DueDigest(page, got.reply(), /*summary=*/false);
    if (due != AsString(digest.Finish().bytes)) return std::nullopt;
  }
  if (!has_list) return result;
  auto keep = KeepOf(got.reply().kept(), result, AsBytes(got.kept()));
  if (!keep.ok()) return std::nullopt;
  result.keep = *std::move(keep);
  return result;
}

std::optional<PutResult> ResultOf(const PagePut&, const v1::LocalReply& reply) {
  PutResult result = PutResultOf(reply.put());
  if (result.outcome == PageOutcome::kNotCompatible) return std::nullopt;
  return result;
}

}  // namespace kvstow
