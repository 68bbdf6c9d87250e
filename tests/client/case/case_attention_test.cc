#include "client/case/case_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CaseAttentions : public testing::Test {
 protected:
  ~CaseAttentions() override { std::filesystem::remove_all(dir_); }

  // A case of two layers, one KV head and four tokens, with a column of two query heads whose score
  // i of layer L is 10 L + i, of a shape that may not fit.
  absl::StatusOr<CaseAttention> Read(const std::string& column, std::vector<uint64_t> shape) {
    std::vector<NewTensor> tensors;
    for (const char* layer : {"0", "1"}) {
      tensors.push_back({absl::StrCat(column, ".", layer), "F32", shape});
    }
    for (const char* name : {"k.0", "v.0", "k.1", "v.1"}) {
      tensors.push_back({name, "F16", {4, 1, 2}});
    }
    tensors.push_back({"tokens", "I32", {4}});
    const std::string path = (dir_ / "case.safetensors").string();
    auto writer = SafetensorsWriter::Create(path, tensors,
                                            {{"layers", "2"},
                                             {"kv_heads", "1"},
                                             {"head_dim", "2"},
                                             {"rope_theta", "10000.0"},
                                             {"rope_layout", "half"},
                                             {"prefix", "4"}});
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t layer = 0; layer < 2; ++layer) {
      const auto out = writer->Data(layer);
      for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
        const auto score = static_cast<float>(10 * layer + i);
        std::memcpy(out.data() + i * sizeof(float), &score, sizeof(float));
      }
    }
    EXPECT_TRUE(writer->Commit().ok());
    const auto file = CaseFile::Open(path);
    if (!file.ok()) return file.status();
    return CaseAttention::Read(*file);
  }

  const std::filesystem::path dir_ =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("case-attention-", getpid());
  const bool made_ = std::filesystem::create_directories(dir_);
};

TEST_F(CaseAttentions, ColumnsThatPoliciesReadAreCutToPages) {
  for (const char* name : {"attn_sum", "attn_window", "kvzip", "kvzap"}) {
    const auto attention = Read(name, {4, 2});
    ASSERT_TRUE(attention.ok()) << attention.status();
    EXPECT_TRUE(attention->Need(name).ok());
    const AttentionColumns columns = attention->Page(1, 2);
    ASSERT_EQ(columns.size(), 1u) << name;
    EXPECT_EQ(columns.at(name).heads, 2u);
    EXPECT_THAT(columns.at(name).scores, ElementsAre(2, 3, 4, 5, 12, 13, 14, 15)) << name;
  }
}

TEST_F(CaseAttentions, WhatTheCaseLacksIsNamed) {
  const auto attention = Read("kvzip", {4, 2});
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_THAT(attention->Need("kvzap").message(), HasSubstr("no tensors kvzap.L"));
}

TEST_F(CaseAttentions, AColumnThatDoesNotFitTheCaseIsRefused) {
  for (const std::vector<uint64_t>& shape : {std::vector<uint64_t>{3, 2}, {4, 0}, {4, 2, 1}, {8}}) {
    const auto attention = Read("kvzip", shape);
    EXPECT_TRUE(absl::IsInvalidArgument(attention.status())) << attention.status();
    EXPECT_THAT(attention.status().message(), HasSubstr("kvzip.0"));
  }
}

}  // namespace
}  // namespace kvstow
