#include "tests/service/wire_client.h"

#include <gtest/gtest.h>

#include <random>

#include "base/digest.h"
#include "proto/wire/chunk.h"
#include "proto/wire/spec.h"

namespace kvstow::testing {

KvSpec SmallSpec() {
  KvSpec spec;
  spec.model = "test/small";
  spec.revision = "1";
  spec.layers = 4;
  spec.kv_heads = 2;
  spec.head_dim_k = 64;
  spec.head_dim_v = 64;
  spec.dtype = DType::kF16;
  spec.page_tokens = 64;
  return spec;
}

std::string RandomPage(const KvSpec& spec, uint32_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(PageBytes(spec, tokens), '\0');
  for (size_t i = 0; i < out.size(); i += 2) {
    // Sign, an exponent around 1, any mantissa.
    const uint32_t bits = random();
    const auto half = static_cast<uint16_t>((bits & 0x83ff) | ((12 + (bits >> 16) % 4) << 10));
    out[i] = static_cast<char>(half & 0xff);
    out[i + 1] = static_cast<char>(half >> 8);
  }
  return out;
}

WireClient::WireClient(const std::string& address, const std::string& token)
    : token_(token),
      channel_([&] {
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      }()),
      kv_(v1::KvCache::NewStub(channel_)),
      admin_(v1::Admin::NewStub(channel_)) {}

std::unique_ptr<grpc::ClientContext> WireClient::Context(int seconds) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  if (!token_.empty()) context->AddMetadata("authorization", "Bearer " + token_);
  return context;
}

grpc::Status WireClient::OpenSpace(const std::string& name, const std::string& recipe,
                                   v1::OpenSpaceResponse* out, v1::Fidelity fidelity) {
  v1::OpenSpaceRequest request;
  request.set_space(name);
  request.set_recipe(recipe);
  request.set_fidelity(fidelity);
  ToProto(SmallSpec(), *request.mutable_spec());
  v1::OpenSpaceResponse response;
  if (out == nullptr) out = &response;
  const grpc::Status status = kv_->OpenSpace(Context().get(), request, out);
  if (status.ok()) Fingerprints::All().Note(name, out->fingerprint());
  return status;
}

grpc::Status WireClient::FindSpace(const std::string& name, v1::OpenSpaceResponse* out) {
  v1::OpenSpaceRequest request;
  request.set_space(name);
  v1::OpenSpaceResponse response;
  if (out == nullptr) out = &response;
  const grpc::Status status = kv_->OpenSpace(Context().get(), request, out);
  if (status.ok()) Fingerprints::All().Note(name, out->fingerprint());
  return status;
}

v1::GetPage Ask(const std::string& key, uint64_t number) {
  v1::GetPage page;
  page.set_page(number);
  page.set_key(key);
  return page;
}

v1::PutRequest OpenPut(const std::string& space) {
  v1::PutRequest request;
  NameSpace(space, *request.mutable_open());
  return request;
}

v1::PutRequest BeginPage(uint64_t number, const PageIn& page, const std::string& data) {
  v1::PutRequest request;
  request.set_page(number);
  v1::PutPage& begin = *request.mutable_begin();
  begin.set_key(page.key);
  begin.set_tokens(page.tokens);
  begin.set_first_position(page.first_position);
  begin.set_payload_bytes(page.raw.size() + page.scores.size());
  begin.set_digest(page.digest);
  begin.set_ack(page.ack);
  begin.mutable_columns()->Add(page.columns.begin(), page.columns.end());
  request.set_data(data);
  return request;
}

Answer<v1::PutResult> WireClient::Put(const std::string& space, const std::vector<PageIn>& pages,
                                      size_t chunk, v1::Payload payload) {
  Answer<v1::PutResult> answer;
  answer.pages.resize(pages.size());
  FindSpace(space);
  const auto context = Context();
  const auto call = kv_->Put(context.get());
  v1::PutRequest first = OpenPut(space);
  first.mutable_open()->set_payload(payload);
  call->Write(first);
  uint64_t credit = 0;
  v1::PutResponse response;
  const auto read = [&] {
    if (!call->Read(&response)) return false;
    credit += response.credit_bytes();
    for (const v1::PutResult& r : response.results()) answer.pages.at(r.page() - 1) = r;
    return true;
  };
  bool open = true;
  for (size_t i = 0; i < pages.size() && open; ++i) {
    const std::string raw = pages[i].raw + pages[i].scores;
    for (size_t offset = 0; open && (offset == 0 || offset < raw.size()); offset += chunk) {
      const std::string data = raw.substr(offset, chunk);
      while (open && credit < data.size()) open = read();
      if (!open) break;
      v1::PutRequest request = BeginPage(i + 1, pages[i], data);
      if (offset > 0) request.clear_begin();
      request.set_offset(offset);
      open = call->Write(request);
      credit -= data.size();
    }
  }
  call->WritesDone();
  while (read()) {
  }
  answer.status = call->Finish();
  return answer;
}

Answer<PageOut> WireClient::Get(const std::string& space, const std::vector<v1::GetPage>& pages,
                                uint64_t lease, v1::Payload payload) {
  Answer<PageOut> answer;
  const auto context = Context();
  const auto call = kv_->Get(context.get());
  v1::GetRequest request;
  FindSpace(space);
  NameSpace(space, *request.mutable_open());
  request.mutable_open()->set_lease(lease);
  request.mutable_open()->set_payload(payload);
  request.set_credit_bytes(uint64_t{1} << 40);
  request.mutable_pages()->Add(pages.begin(), pages.end());
  call->Write(request);
  call->WritesDone();
  v1::GetResponse response;
  while (call->Read(&response)) {
    if (response.has_begin()) answer.pages.push_back({response.begin(), ""});
    if (response.offset() != answer.pages.back().data.size()) {
      call->Finish();
      answer.status = grpc::Status(grpc::StatusCode::INTERNAL, "a chunk came out of order");
      return answer;
    }
    answer.pages.back().data += response.data();
  }
  answer.status = call->Finish();
  for (size_t i = 0; i < answer.pages.size(); ++i) {
    if (answer.status.ok()) ExpectProven(pages[i], payload, answer.pages[i]);
  }
  return answer;
}

void ExpectProven(const v1::GetPage& asked, v1::Payload payload, const PageOut& page) {
  EXPECT_EQ(page.reply.key(), asked.key());
  const bool whole = asked.first_layer() == 0 && asked.layer_count() == 0 &&
                     asked.first_token() == 0 && asked.token_count() == 0;
  const bool as_put = payload != v1::SUMMARY && page.reply.exact() && whole;
  std::string digest(AsString(Xxh3_128(AsBytes(page.data)).bytes));
  if (as_put && payload == v1::RAW) {
    EXPECT_EQ(page.reply.raw_digest(), digest);
  }
  if (as_put || payload == v1::ENCODED || page.reply.status() != v1::HIT) digest.clear();
  EXPECT_EQ(page.reply.payload_digest(), digest);
}

v1::LookupResponse WireClient::Lookup(const std::string& space,
                                      const std::vector<std::string>& keys, bool lease) {
  v1::LookupRequest request;
  FindSpace(space);
  NameSpace(space, request);
  request.mutable_keys()->Add(keys.begin(), keys.end());
  request.set_lease(lease);
  v1::LookupResponse response;
  kv_->Lookup(Context().get(), request, &response);
  return response;
}

v1::UsageResponse WireClient::Usage() {
  v1::UsageResponse response;
  kv_->Usage(Context().get(), {}, &response);
  return response;
}

}  // namespace kvstow::testing
