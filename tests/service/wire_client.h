// A client of generated code alone: plain protobuf messages and synchronous stubs, as any other
// language would have them. It proves that the server's raw methods are the contract of the .proto.
#ifndef KVSTOW_TESTS_SERVICE_WIRE_CLIENT_H_
#define KVSTOW_TESTS_SERVICE_WIRE_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kernels/page/page.h"
#include "kvstow/v1/admin.grpc.pb.h"
#include "kvstow/v1/kv_cache.grpc.pb.h"
#include "tests/service/fingerprints.h"

namespace kvstow::testing {

// Small pages: 64 tokens are 128 KiB.
KvSpec SmallSpec();
// A page of `tokens` tokens of ordinary F16 values; another `seed`, another page.
std::string RandomPage(const KvSpec& spec, uint32_t tokens, uint32_t seed);

struct PageIn {
  std::string key, raw;
  uint32_t tokens = 0;
  uint64_t first_position = 0;
  std::string digest = {};  // "" = none is sent
  v1::Ack ack = v1::ACK_UNSPECIFIED;
  std::vector<v1::PageColumn> columns = {};
  std::string scores = {};  // of the columns, behind `raw`
};
struct PageOut {
  v1::PageReply reply;
  std::string data;
};
template <typename T>
struct Answer {
  grpc::Status status;
  std::vector<T> pages;  // Put: in the order of the pages
};

using PutCall = grpc::ClientReaderWriter<v1::PutRequest, v1::PutResponse>;
using GetCall = grpc::ClientReaderWriter<v1::GetRequest, v1::GetResponse>;

class WireClient {
 public:
  // `token` goes with every call; "" = none.
  explicit WireClient(const std::string& address, const std::string& token = "");

  // A context with a deadline.
  std::unique_ptr<grpc::ClientContext> Context(int seconds = 30) const;

  grpc::Status OpenSpace(const std::string& name, const std::string& recipe,
                         v1::OpenSpaceResponse* out = nullptr,
                         v1::Fidelity fidelity = v1::FIDELITY_UNSPECIFIED);
  Answer<v1::PutResult> Put(const std::string& space, const std::vector<PageIn>& pages,
                            size_t chunk = 64 << 10, v1::Payload payload = v1::RAW);
  // Expects each page to be proven.
  Answer<PageOut> Get(const std::string& space, const std::vector<v1::GetPage>& pages,
                      uint64_t lease = 0, v1::Payload payload = v1::RAW);
  v1::LookupResponse Lookup(const std::string& space, const std::vector<std::string>& keys,
                            bool lease);
  v1::UsageResponse Usage();
  // Opens a space by its name and notes its fingerprint.
  grpc::Status FindSpace(const std::string& name, v1::OpenSpaceResponse* out = nullptr);

  v1::KvCache::Stub& kv() { return *kv_; }
  v1::Admin::Stub& admin() { return *admin_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  const std::string token_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::KvCache::Stub> kv_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
};

// The reply names the page that was asked for, and its payload has the digest that is due.
void ExpectProven(const v1::GetPage& asked, v1::Payload payload, const PageOut& page);

v1::GetPage Ask(const std::string& key, uint64_t number = 1);
v1::PutRequest OpenPut(const std::string& space);
// The first chunk of a page, with `data` of it.
v1::PutRequest BeginPage(uint64_t number, const PageIn& page, const std::string& data);

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_WIRE_CLIENT_H_
