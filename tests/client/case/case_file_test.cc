#include "client/case/case_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using testing::HasSubstr;

const std::string kFixture = TestsPath("data/smollm2-wiki-256.safetensors");

class CaseFiles : public testing::Test {
 protected:
  ~CaseFiles() override { std::filesystem::remove_all(dir_); }

  // A case of one layer, one head, two channels and six tokens, of which `prefix` have KV.
  std::string Write(TensorMetadata changed, std::vector<NewTensor> tensors) {
    TensorMetadata metadata = {{"layers", "1"},         {"kv_heads", "1"},
                               {"head_dim", "2"},       {"rope_theta", "10000.0"},
                               {"rope_layout", "half"}, {"prefix", "4"}};
    for (auto& [key, value] : changed) {
      if (value.empty()) {
        metadata.erase(key);
      } else {
        metadata[key] = value;
      }
    }
    const std::string path = (dir_ / "case.safetensors").string();
    auto writer = SafetensorsWriter::Create(path, tensors, metadata);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t i = 0; i < writer->Data(t).size(); ++i) {
        writer->Data(t)[i] = static_cast<uint8_t>(i + 100 * t);
      }
    }
    EXPECT_TRUE(writer->Commit().ok());
    return path;
  }
  static std::vector<NewTensor> Good() {
    return {{"k.0", "F16", {4, 1, 2}}, {"v.0", "F16", {4, 1, 2}}, {"tokens", "I32", {6}}};
  }
  void ExpectRefused(const std::string& path, const std::string& why) {
    const auto file = CaseFile::Open(path);
    ASSERT_FALSE(file.ok()) << why;
    EXPECT_THAT(file.status().message(), HasSubstr(path));
    EXPECT_THAT(file.status().message(), HasSubstr(why));
  }

  const std::filesystem::path dir_ =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("case-", getpid());
  const bool made_ = std::filesystem::create_directories(dir_);
};

TEST_F(CaseFiles, TheFixtureIsRead) {
  const auto file = CaseFile::Open(kFixture);
  ASSERT_TRUE(file.ok()) << file.status();
  const KvSpec spec = file->Spec(64);
  EXPECT_EQ(spec.layers, 30u);
  EXPECT_EQ(spec.kv_heads, 3u);
  EXPECT_EQ(spec.head_dim_k, 64u);
  EXPECT_EQ(spec.head_dim_v, 64u);
  EXPECT_EQ(spec.page_tokens, 64u);
  EXPECT_EQ(spec.dtype, DType::kF16);
  EXPECT_EQ(spec.rope.layout, RopeSpec::Layout::kHalf);
  EXPECT_EQ(spec.rope.theta, 100000);
  EXPECT_EQ(spec.model, "SmolLM2-135M-Instruct");
  EXPECT_EQ(file->tokens().size(), 256u);
}

TEST_F(CaseFiles, APageHasTheRowsOfItsTokensInTheLayoutOfPages) {
  const auto file = CaseFile::Open(Write({}, Good()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tokens().size(), 4u);
  std::vector<uint8_t> page(PageBytes(file->Spec(2), 2));
  file->ReadPage(1, 2, page);
  // Rows of 4 bytes: K begins at 0 and V at 100 in this file.
  EXPECT_THAT(
      page, testing::ElementsAre(4, 5, 6, 7, 8, 9, 10, 11, 104, 105, 106, 107, 108, 109, 110, 111));
}

TEST_F(CaseFiles, PagesThatWereReadAndWrittenMakeTheSameCase) {
  const auto file = CaseFile::Open(kFixture);
  ASSERT_TRUE(file.ok());
  const KvSpec spec = file->Spec(100);
  std::vector<std::vector<uint8_t>> raw;
  std::vector<DecodedPage> pages;
  for (const auto& [first, count] : {std::pair(0u, 100u), std::pair(100u, 100u), {200u, 56u}}) {
    raw.emplace_back(PageBytes(spec, count));
    file->ReadPage(first, count, raw.back());
    pages.push_back({first, count, raw.back()});
  }
  const std::string out = (dir_ / "out.safetensors").string();
  ASSERT_TRUE(WriteDecoded(out, *file, pages, 12345).ok());
  const auto a = SafetensorsReader::Open(kFixture), b = SafetensorsReader::Open(out);
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(b->metadata().at("stored_bytes"), "12345");
  EXPECT_EQ(b->metadata().at("prefix"), "256");
  EXPECT_EQ(b->metadata().at("rope_layout"), "half");
  EXPECT_EQ(b->tensors().size(), 60u);
  for (const auto& [name, tensor] : b->tensors()) {
    const auto original = a->Find(name);
    ASSERT_TRUE(original.ok());
    EXPECT_EQ(tensor.shape, original->shape) << name;
    EXPECT_TRUE(std::ranges::equal(a->Data(*original), b->Data(tensor))) << name;
  }
}

TEST_F(CaseFiles, SomeLayersHaveAnotherRope) {
  auto tensors = Good();
  for (const char* name : {"k.1", "v.1"}) tensors.push_back({name, "F16", {4, 1, 2}});
  TensorMetadata metadata = {
      {"layers", "2"}, {"other_rope_theta", "1e6"}, {"other_rope_layers", "1"}};
  const auto file = CaseFile::Open(Write(metadata, tensors));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(RopeOfLayer(file->Spec(4), 0).theta, 1e4);
  EXPECT_EQ(RopeOfLayer(file->Spec(4), 1).theta, 1e6);
  for (const char* layers : {"", "x", "0,1", "2", "1,"}) {
    metadata["other_rope_layers"] = layers;
    ExpectRefused(Write(metadata, tensors), "other_rope");
  }
  metadata.erase("other_rope_theta");
  ExpectRefused(Write(metadata, tensors), "other_rope_theta is missing");
}

TEST_F(CaseFiles, WhatDoesNotFitIsRefusedByTensorOrField) {
  for (const char* field :
       {"layers", "kv_heads", "head_dim", "rope_theta", "rope_layout", "prefix"}) {
    ExpectRefused(Write({{field, ""}}, Good()), absl::StrCat(field, " is missing"));
    ExpectRefused(Write({{field, "x"}}, Good()), field);
  }
  ExpectRefused(Write({{"layers", "0"}}, Good()), "layers");
  ExpectRefused(Write({{"layers", "2"}}, Good()), "k.1");
  ExpectRefused(Write({{"layers", "4000000000"}}, Good()), "layers");
  ExpectRefused(Write({{"head_dim", "3"}}, Good()), "k.0");
  ExpectRefused(Write({{"prefix", "0"}}, Good()), "prefix");
  ExpectRefused(Write({{"prefix", "5"}}, Good()), "k.0: shape");
  ExpectRefused(Write({{"prefix", "7"}}, Good()), "prefix");

  auto tensors = Good();
  tensors[1].dtype = "BF16";
  ExpectRefused(Write({}, tensors), "v.0: dtype BF16, but k.0 has F16");
  tensors = Good();
  tensors[0].dtype = "I16";
  ExpectRefused(Write({}, tensors), "k.0: dtype I16");
  tensors = Good();
  tensors[1].shape = {4, 2};
  ExpectRefused(Write({}, tensors), "v.0: shape [4, 2]");
  tensors = Good();
  tensors[2].dtype = "I64";
  ExpectRefused(Write({}, tensors), "tokens");
  tensors.pop_back();
  ExpectRefused(Write({}, tensors), "tokens");
}

}  // namespace
}  // namespace kvstow
