// A worker's end of a local session, which speaks the protocol by hand.
#ifndef KVSTOW_TESTS_SERVICE_TRANSPORTS_LOCAL_WORKER_H_
#define KVSTOW_TESTS_SERVICE_TRANSPORTS_LOCAL_WORKER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/digest.h"
#include "base/shared_memory.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/local_socket.h"
#include "tests/service/wire_client.h"

namespace kvstow::testing {

inline constexpr Duration kSoon = std::chrono::seconds(20);

// A worker's end.
struct Worker {
  LocalSocket socket;
  SharedMemory memory;

  v1::LocalReply Call(const v1::LocalRequest& request) {
    v1::LocalReply reply;
    EXPECT_TRUE(socket.Send(request).ok());
    const absl::Status came = socket.Receive(reply, kSoon);
    EXPECT_TRUE(came.ok()) << came;
    return reply;
  }
  v1::LocalSlot Allocate(uint64_t bytes) {
    v1::LocalRequest request;
    request.mutable_allocate()->set_request(7);
    request.mutable_allocate()->set_bytes(bytes);
    const v1::LocalReply reply = Call(request);
    EXPECT_EQ(reply.slot().request(), 7u);
    return reply.slot();
  }
  void Free(const v1::Slot& slot) {
    v1::LocalRequest request;
    *request.mutable_free()->mutable_slot() = slot;
    EXPECT_TRUE(socket.Send(request).ok());
  }
  std::span<uint8_t> Bytes(const v1::LocalSlot& slot) {
    return memory.bytes().subspan(slot.offset(), slot.bytes());
  }
  // Asks for a page into a slot, and expects it to be proven.
  PageOut Get(const v1::LocalSlot& slot, const v1::LocalRequest& request) {
    const v1::LocalReply reply = Call(request);
    PageOut page{.reply = reply.got().reply(), .data = reply.got().kept()};
    if (page.reply.status() == v1::HIT) {
      const auto raw = Bytes(slot).first(page.reply.payload_bytes() - page.data.size());
      page.data.insert(0, AsString(raw).data(), raw.size());
    }
    ExpectProven(request.get().pages(0).page(), v1::RAW, page);
    return page;
  }
};

inline v1::LocalRequest PutOf(const v1::LocalSlot& slot, const PageIn& page) {
  v1::LocalRequest request;
  NameSpace("s", *request.mutable_put());
  v1::LocalPutPage& put = *request.mutable_put()->add_pages();
  put.set_number(3);
  put.mutable_page()->set_key(page.key);
  put.mutable_page()->set_tokens(page.tokens);
  put.mutable_page()->set_payload_bytes(page.raw.size());
  *put.mutable_from()->mutable_slot() = slot.slot();
  put.mutable_from()->set_bytes(page.raw.size());
  return request;
}

inline v1::LocalRequest GetOf(const v1::LocalSlot& slot, const std::string& key) {
  v1::LocalRequest request;
  NameSpace("s", *request.mutable_get());
  v1::LocalGetPage& get = *request.mutable_get()->add_pages();
  *get.mutable_page() = Ask(key, 5);
  *get.mutable_to()->mutable_slot() = slot.slot();
  get.mutable_to()->set_bytes(slot.bytes());
  return request;
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_TRANSPORTS_LOCAL_WORKER_H_
