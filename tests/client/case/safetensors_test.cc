#include "client/case/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  ~Safetensors() override { std::filesystem::remove_all(dir_); }

  // A file with this header and `data_bytes` bytes behind it.
  std::string Write(const std::string& header, size_t data_bytes) {
    const uint64_t n = header.size();
    std::string bytes(reinterpret_cast<const char*>(&n), sizeof(n));
    return WriteBytes(bytes + header + std::string(data_bytes, 'x'));
  }
  std::string WriteBytes(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  // Every file that is refused says which it is.
  void ExpectRefused(const std::string& path, const std::string& why) {
    const auto reader = SafetensorsReader::Open(path);
    ASSERT_TRUE(absl::IsInvalidArgument(reader.status())) << reader.status() << " for " << why;
    EXPECT_THAT(reader.status().message(), HasSubstr(path));
    EXPECT_THAT(reader.status().message(), HasSubstr(why));
  }

  const std::filesystem::path dir_ =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("safetensors-", getpid());
  const std::string path_ = (std::filesystem::create_directories(dir_), dir_ / "f.safetensors");
};

TEST_F(Safetensors, WhatIsWrittenIsRead) {
  const std::vector<NewTensor> tensors = {
      {"k.0", "F16", {2, 3}}, {"empty", "F32", {0, 7}}, {"mask", "U8", {5}}};
  auto writer = SafetensorsWriter::Create(path_, tensors, {{"layers", "1"}, {"odd \"name\"", "ü"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ(writer->Data(0).size(), 12u);
  ASSERT_EQ(writer->Data(2).size(), 5u);
  std::memset(writer->Data(0).data(), 1, 12);
  std::memset(writer->Data(2).data(), 2, 5);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "a file appears when it is whole";
  ASSERT_TRUE(writer->Commit().ok());

  const auto reader = SafetensorsReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->metadata().at("layers"), "1");
  EXPECT_EQ(reader->metadata().at("odd \"name\""), "ü");
  const auto k = reader->Find("k.0"), mask = reader->Find("mask");
  ASSERT_TRUE(k.ok() && mask.ok());
  EXPECT_EQ(k->dtype, "F16");
  EXPECT_THAT(k->shape, testing::ElementsAre(2, 3));
  EXPECT_THAT(reader->Data(*k), testing::Each(1));
  EXPECT_THAT(reader->Data(*mask), testing::Each(2));
  EXPECT_TRUE(absl::IsNotFound(reader->Find("v.0").status()));
  EXPECT_THAT(reader->Find("v.0").status().message(), HasSubstr("v.0"));
}

TEST_F(Safetensors, AFileThatIsNotCommittedLeavesNothing) {
  {
    const auto writer = SafetensorsWriter::Create(path_, {}, {});
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  EXPECT_TRUE(absl::IsNotFound(
      SafetensorsWriter::Create((dir_ / "no" / "such").string(), {}, {}).status()));
}

TEST_F(Safetensors, FilesThatAreNoSafetensorsAreRefused) {
  EXPECT_TRUE(absl::IsNotFound(SafetensorsReader::Open((dir_ / "nothing").string()).status()));
  ExpectRefused(WriteBytes(""), "shorter than 8");
  ExpectRefused(WriteBytes("1234567"), "shorter than 8");
  ExpectRefused(WriteBytes(std::string(8, '\xff')), "header says 18446744073709551615");
  ExpectRefused(WriteBytes(std::string("\x40\0\0\0\0\0\0\0{}", 10)), "header says 64");
  ExpectRefused(Write("", 0), "not a JSON object");
  ExpectRefused(Write("[]", 0), "not a JSON object");
  ExpectRefused(Write("{\"a\":", 0), "not a JSON object");
  ExpectRefused(Write(std::string(100'000, '['), 0), "not a JSON object");
  ExpectRefused(Write("{\"a\xff\":{}}", 0), "not a JSON object");
}

TEST_F(Safetensors, HostileHeadersAreRefusedByTensorAndField) {
  const auto tensor = [](const std::string& rest) { return "{\"k.0\":{" + rest + "}}"; };
  const std::string f16 = R"("dtype":"F16",)";
  ExpectRefused(Write("{\"k.0\":7}", 8), "tensor k.0: is not an object");
  ExpectRefused(Write(tensor(R"("shape":[4],"data_offsets":[0,8])"), 8), "dtype is missing");
  ExpectRefused(Write(tensor(R"("dtype":"F17","shape":[4],"data_offsets":[0,8])"), 8), "F17");
  ExpectRefused(Write(tensor(f16 + R"("data_offsets":[0,8])"), 8), "shape");
  ExpectRefused(Write(tensor(f16 + R"("shape":[-4],"data_offsets":[0,8])"), 8), "shape has -4");
  ExpectRefused(Write(tensor(f16 + R"("shape":[4.0],"data_offsets":[0,8])"), 8), "shape has 4.0");
  ExpectRefused(Write(tensor(f16 + R"("shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,8])"), 8),
                "shape");
  ExpectRefused(Write(tensor(f16 + R"("shape":[4],"data_offsets":[0,9])"), 8), "data_offsets");
  ExpectRefused(Write(tensor(f16 + R"("shape":[4],"data_offsets":[8,0])"), 8), "data_offsets");
  ExpectRefused(Write(tensor(f16 + R"("shape":[4],"data_offsets":[0])"), 8), "data_offsets");
  ExpectRefused(Write(tensor(f16 + R"("shape":[4],"data_offsets":"0,8")"), 8), "data_offsets");
  ExpectRefused(Write(tensor(f16 + R"("shape":[5],"data_offsets":[0,8])"), 8), "shape and dtype");
  // 2 * 2^63 bytes are 0 in 64 bits.
  ExpectRefused(Write(tensor(f16 + R"("shape":[9223372036854775808],"data_offsets":[0,0])"), 8),
                "shape and dtype");
  ExpectRefused(
      Write(
          tensor(f16 + R"("shape":[4],"data_offsets":[18446744073709551608,18446744073709551615])"),
          8),
      "data_offsets");
  ExpectRefused(Write(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                      R"("b":{"dtype":"U8","shape":[5],"data_offsets":[3,8]}})",
                      8),
                "tensor b: data_offsets overlap a");
  ExpectRefused(Write(R"({"__metadata__":{"layers":30}})", 0), "layers is not a string");
  ExpectRefused(Write(R"({"__metadata__":[]})", 0), "__metadata__");
}

TEST_F(Safetensors, AnyPrefixOfAFileIsRefusedAndNeverReadPastItsEnd) {
  const std::string header = R"({"k":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
  const uint64_t n = header.size();
  const std::string whole =
      std::string(reinterpret_cast<const char*>(&n), sizeof(n)) + header + "01234567";
  ASSERT_TRUE(SafetensorsReader::Open(WriteBytes(whole)).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(SafetensorsReader::Open(WriteBytes(whole.substr(0, bytes))).ok())
        << "cut after " << bytes;
  }
}

TEST_F(Safetensors, RandomDamageOfTheHeaderNeverCrashes) {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"k":{"dtype":"U8","shape":[2,4],"data_offsets":[0,8]}})";
  const uint64_t n = header.size();
  uint32_t state = 1;
  for (int round = 0; round < 500; ++round) {
    std::string bytes =
        std::string(reinterpret_cast<const char*>(&n), sizeof(n)) + header + "01234567";
    for (int i = 0; i < 3; ++i) {
      state = state * 1664525u + 1013904223u;
      bytes[(state >> 8) % bytes.size()] = static_cast<char>(state >> 24);
    }
    const auto reader = SafetensorsReader::Open(WriteBytes(bytes));
    if (!reader.ok()) continue;
    for (const auto& [name, tensor] : reader->tensors()) {
      EXPECT_EQ(reader->Data(tensor).size(), tensor.bytes);
    }
  }
}

TEST_F(Safetensors, TheUmaskSaysWhoMayReadAFile) {
  const std::pair<mode_t, mode_t> modes[] = {{0022, 0644}, {0077, 0600}, {0002, 0664}};
  for (const auto& [mask, mode] : modes) {
    const mode_t before = umask(mask);
    auto writer = SafetensorsWriter::Create(path_, std::vector<NewTensor>{{"a", "U8", {1}}}, {});
    umask(before);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(writer->Commit().ok());
    struct stat about {};
    ASSERT_EQ(stat(path_.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, mode);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1) << "nothing beside it";
}

}  // namespace
}  // namespace kvstow
