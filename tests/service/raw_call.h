// A gRPC call of any method, by its name and in bytes.
#ifndef KVSTOW_TESTS_SERVICE_RAW_CALL_H_
#define KVSTOW_TESTS_SERVICE_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace kvstow::testing {

// One message in, the first message back, on any method. `token` "" = no identity.
inline grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::string& request,
                            std::string* response, const std::string& token = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  queue.Next(&tag, &ok);
  call->WritesDone(nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer buffer;
  call->Read(&buffer, nullptr);
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (ok && buffer.Dump(&slices).ok()) {
    for (const auto& s : slices) {
      response->append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_RAW_CALL_H_
