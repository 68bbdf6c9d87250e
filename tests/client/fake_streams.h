// The streams of the fake server, and the state that they share with its unary calls.
#ifndef KVSTOW_TESTS_CLIENT_FAKE_STREAMS_H_
#define KVSTOW_TESTS_CLIENT_FAKE_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <mutex>
#include <string>

#include "kernels/page/page.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "tests/client/fake_server.h"

namespace kvstow::fake {

struct Page {
  std::string bytes;
  uint32_t tokens = 0;
  uint64_t first_position = 0;
};

struct Space {
  KvSpec spec;
  std::map<std::string, Page> pages;
};

struct State {
  std::mutex mu;
  std::map<std::string, Space> spaces;
  FakeFaults faults;

  bool Has(const std::string& space) {
    std::lock_guard lock(mu);
    return spaces.contains(space);
  }
  v1::PageStatus Store(const std::string& space, const v1::PutPage& page, std::string bytes) {
    std::lock_guard lock(mu);
    Space& s = spaces[space];
    if (bytes.size() != PageBytes(s.spec, page.tokens())) return v1::REFUSED;
    const auto [it, fresh] = s.pages.try_emplace(page.key());
    if (!fresh) return it->second.bytes == bytes ? v1::ALREADY_THERE : v1::CONFLICT;
    it->second = {std::move(bytes), page.tokens(), page.first_position()};
    return v1::STORED;
  }
};

grpc::Status NoSpace(const std::string& name);

// Own themselves until the stream is over.
grpc::ServerBidiReactor<v1::PutRequest, v1::PutResponse>* NewPutStream(State& state);
grpc::ServerBidiReactor<v1::GetRequest, v1::GetResponse>* NewGetStream(State& state);

}  // namespace kvstow::fake

#endif  // KVSTOW_TESTS_CLIENT_FAKE_STREAMS_H_
