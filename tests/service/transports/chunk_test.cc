// Bulk messages against plain protobuf: the same bytes both ways, and no trust in any length.
#include "proto/wire/chunk.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "base/digest.h"

namespace kvstow {
namespace {

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string out;
  for (const grpc::Slice& s : slices)
    out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return out;
}

// `text` cut into slices of `step` bytes.
grpc::ByteBuffer Buffer(const std::string& text, size_t step) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < text.size(); i += step) slices.emplace_back(text.substr(i, step));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Join(const ChunkPayload& payload) {
  std::string out;
  for (const grpc::Slice& s : payload.slices) {
    out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return out;
}

v1::PutRequest FullRequest() {
  v1::PutRequest message;
  message.set_page(300);
  message.mutable_begin()->set_key("key");
  message.mutable_begin()->set_tokens(64);
  message.mutable_begin()->set_payload_bytes(1 << 20);
  message.set_offset(77);
  return message;
}

TEST(ChunkTest, WritesWhatProtobufWouldWrite) {
  const std::string data(100'000, 'x');
  const SharedBytes bytes = SharedBytes::CopyOf(AsBytes(data));
  const std::vector<SharedBytes> parts = {bytes.Slice(0, 1), bytes.Slice(1, 0),
                                          bytes.Slice(1, bytes.size() - 1)};
  v1::PutRequest message = FullRequest();
  const std::string written = Text(WriteChunk(message, parts));
  message.set_data(data);
  EXPECT_EQ(written, message.SerializeAsString());
}

TEST(ChunkTest, WithoutPayloadThereIsNoDataField) {
  const v1::PutRequest message = FullRequest();
  EXPECT_EQ(Text(WriteChunk(message, {})), message.SerializeAsString());
  EXPECT_EQ(Text(WriteMessage(message)), message.SerializeAsString());
}

TEST(ChunkTest, PayloadIsReferencedUntilTheBufferGoes) {
  auto owner = std::make_shared<std::string>(4096, 'a');
  const std::weak_ptr<std::string> alive = owner;
  SharedBytes bytes(owner, AsBytes(*owner));
  const uint8_t* const address = bytes.data();
  auto buffer = std::make_unique<grpc::ByteBuffer>(
      WriteChunk(v1::GetResponse(), std::vector<SharedBytes>{std::move(bytes)}));
  owner.reset();
  ASSERT_FALSE(alive.expired()) << "the buffer must keep the payload alive";
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer->Dump(&slices).ok());
  EXPECT_EQ(slices.back().begin(), address) << "the payload was copied";
  slices.clear();
  buffer.reset();
  EXPECT_TRUE(alive.expired()) << "the payload leaked";
}

TEST(ChunkTest, ReadsWhateverTheSlicesAre) {
  v1::PutRequest message = FullRequest();
  message.set_data(std::string(1000, 'd'));
  const std::string wire = message.SerializeAsString();
  for (const size_t step : {size_t{1}, size_t{2}, size_t{7}, size_t{64}, wire.size()}) {
    v1::PutRequest read;
    const auto payload = ReadChunk(Buffer(wire, step), read);
    ASSERT_TRUE(payload.ok()) << payload.status();
    EXPECT_EQ(payload->bytes, 1000u) << "slices of " << step;
    EXPECT_EQ(Join(*payload), message.data()) << "slices of " << step;
    EXPECT_TRUE(read.data().empty()) << "payload must not be copied into the message";
    EXPECT_EQ(read.begin().key(), "key");
    EXPECT_EQ(read.offset(), 77u);
  }
}

TEST(ChunkTest, UnknownFieldsBeforeDataAreSkipped) {
  // Field 9, of each wire type, then data.
  const std::string wire = std::string("\x48\x05", 2) + std::string("\x49", 1) +
                           std::string(8, '\1') +
                           std::string(
                               "\x4a\x03"
                               "abc",
                               5) +
                           std::string("\x4d", 1) + std::string(4, '\1') +
                           std::string(
                               "\x7a\x02"
                               "xy",
                               4);
  v1::PutRequest read;
  const auto payload = ReadChunk(Buffer(wire, 3), read);
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(Join(*payload), "xy");
}

TEST(ChunkTest, EveryCutIsAnErrorOrAShorterMessage) {
  v1::PutRequest message = FullRequest();
  message.set_data("payload");
  const std::string wire = message.SerializeAsString();
  for (size_t n = 0; n < wire.size(); ++n) {
    v1::PutRequest read;
    const auto payload = ReadChunk(Buffer(wire.substr(0, n), 5), read);
    if (!payload.ok()) {
      EXPECT_EQ(payload.status().code(), absl::StatusCode::kInvalidArgument) << "cut at " << n;
    } else {
      EXPECT_EQ(payload->bytes, 0u) << "cut at " << n << ": payload that is cut is no payload";
    }
  }
}

TEST(ChunkTest, LengthsAreNotTrusted) {
  const struct {
    const char* what;
    std::string wire;
  } kCases[] = {
      {"data longer than the message", std::string("\x7a\x05"
                                                   "abc",
                                                   5)},
      {"data shorter than the message", std::string("\x7a\x02"
                                                    "abc",
                                                    5)},
      {"data of 2^63 bytes", "\x7a" + std::string(8, '\xff') +
                                 "\x7f"
                                 "abc"},
      {"a field of 2^63 bytes", "\x4a" + std::string(8, '\xff') +
                                    "\x7f"
                                    "abc"},
      {"a varint without end", std::string(11, '\xff')},
      {"a group", std::string("\x4b", 1)},
      {"a field after data", std::string("\x7a\x01"
                                         "a\x20\x01",
                                         5)},
  };
  for (const auto& c : kCases) {
    v1::PutRequest read;
    const auto payload = ReadChunk(Buffer(c.wire, 4), read);
    EXPECT_EQ(payload.status().code(), absl::StatusCode::kInvalidArgument) << c.what;
  }
}

TEST(ChunkTest, SizesAreBounded) {
  v1::PutRequest message;
  message.set_data(std::string(kMaxChunkBytes + 1, 'x'));
  v1::PutRequest read;
  EXPECT_FALSE(ReadChunk(Buffer(message.SerializeAsString(), 1 << 20), read).ok());
  message.set_data(std::string(kMaxChunkBytes, 'x'));
  EXPECT_TRUE(ReadChunk(Buffer(message.SerializeAsString(), 1 << 20), read).ok());
  message.clear_data();
  message.mutable_begin()->set_key(std::string(100'000, 'k'));
  EXPECT_FALSE(ReadChunk(Buffer(message.SerializeAsString(), 1 << 20), read).ok())
      << "the fields before data are bounded too";
}

TEST(ChunkTest, NoiseNeverCrashes) {
  std::mt19937 random(1);
  v1::PutRequest message = FullRequest();
  message.set_data("payload");
  const std::string good = message.SerializeAsString();
  for (int round = 0; round < 20'000; ++round) {
    std::string wire = good;
    for (int flips = 1 + round % 4; flips > 0; --flips) {
      wire[random() % wire.size()] = static_cast<char>(random());
    }
    if (round % 3 == 0) wire.resize(random() % (wire.size() + 1));
    v1::PutRequest read;
    const auto payload = ReadChunk(Buffer(wire, 1 + random() % 16), read);
    if (payload.ok()) {
      EXPECT_EQ(Join(*payload).size(), payload->bytes);
    } else {
      EXPECT_EQ(payload.status().code(), absl::StatusCode::kInvalidArgument);
    }
    v1::GetRequest other;
    (void)ReadMessage(Buffer(wire, 8), other);
  }
}

}  // namespace
}  // namespace kvstow
