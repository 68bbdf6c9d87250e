// Readers of traces: both schemas, plain and gz; every kind of damage has its message.
#include "storage/trace/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/paths.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kMooncake[] =
    R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]})"
    "\n"
    R"({"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]})"
    "\n";
constexpr char kBailian[] =
    R"({"chat_id": 3, "parent_chat_id": -1, "timestamp": 61.25, "input_length": 33, )"
    R"("output_length": 12, "type": "text", "turn": 1, "hash_ids": [7, 8, 18446744073709551615]})";

class TraceReaderTest : public ::testing::Test {
 protected:
  std::string Plain(const std::string& text) {
    const std::string path = dir_.path() + "/trace.jsonl";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string Gzipped(const std::string& text) {
    const std::string path = dir_.path() + "/trace.jsonl.gz";
    const gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    return path;
  }
  // Reads a trace of `text` to its end.
  absl::Status Read(const std::string& text) { return LoadTrace(Plain(text)).status(); }

  TempDir dir_;
};

TEST_F(TraceReaderTest, ReadsMooncake) {
  for (const std::string& path : {Plain(kMooncake), Gzipped(kMooncake)}) {
    auto reader = TraceReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->schema(), TraceSchema::kMooncake);
    TraceRequest request;
    ASSERT_TRUE(reader->Next(request).value());
    EXPECT_EQ(request.time_s, 0);
    EXPECT_EQ(request.input_tokens, 1100u);
    EXPECT_EQ(request.output_tokens, 5u);
    EXPECT_THAT(request.blocks, ElementsAre(0, 1, 2));
    ASSERT_TRUE(reader->Next(request).value());
    EXPECT_EQ(request.time_s, 2.5);
    EXPECT_THAT(request.blocks, ElementsAre(0, 9));
    EXPECT_FALSE(reader->Next(request).value());
    EXPECT_FALSE(reader->Next(request).value());
    EXPECT_EQ(reader->bytes_read(), reader->file_bytes());
  }
}

TEST_F(TraceReaderTest, ReadsBailianWithoutALastNewline) {
  for (const std::string& path : {Plain(kBailian), Gzipped(kBailian)}) {
    auto reader = TraceReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->schema(), TraceSchema::kBailian);
    EXPECT_EQ(TraceBlockTokens(reader->schema()), 16u);
    TraceRequest request;
    ASSERT_TRUE(reader->Next(request).value());
    EXPECT_EQ(request.time_s, 61.25);
    EXPECT_THAT(request.blocks, ElementsAre(7, 8, UINT64_MAX));
    EXPECT_FALSE(reader->Next(request).value());
  }
}

TEST_F(TraceReaderTest, ASessionIsTheFirstChatOfAConversation) {
  // Chats and their parents; 9 goes on with a chat that the file does not have.
  const std::pair<int, int> chats[] = {{3, -1}, {4, -1}, {5, 3}, {6, 5}, {7, 4}, {9, 8}};
  std::string text;
  for (const auto& [chat, parent] : chats) {
    absl::StrAppend(&text, R"({"chat_id": )", chat, R"(, "parent_chat_id": )", parent,
                    R"(, "timestamp": )", chat,
                    R"(, "input_length": 1, "output_length": 1, "hash_ids": [1]})", "\n");
  }
  absl::StrAppend(&text, R"({"timestamp": 10, "input_length": 1, "output_length": 1, )",
                  R"("hash_ids": [1]})", "\n");
  const auto trace = LoadTrace(Plain(text));
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::vector<int64_t> sessions;
  for (const TraceRequest& request : trace->requests) sessions.push_back(request.session);
  EXPECT_THAT(sessions, ElementsAre(3, 4, 3, 3, 4, 8, TraceRequest::kNoSession));
  const auto other = LoadTrace(Plain(kMooncake));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->requests[0].session, TraceRequest::kNoSession);
}

TEST_F(TraceReaderTest, BlankLinesAreSkippedAndARequestMayHaveNoBlocks) {
  const auto trace = LoadTrace(Plain(absl::StrCat(
      "\n \r\n", kMooncake,
      R"({"timestamp":1,"input_length":0,"output_length":0,"hash_ids":[],"more":{"a":[1]}})",
      "\n\n")));
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_TRUE(trace->requests[1].blocks.empty());  // sorted by time
  EXPECT_EQ(trace->requests[2].time_s, 2.5);
}

TEST_F(TraceReaderTest, LongLinesAreReadWhole) {
  std::string text = R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0)";
  for (int i = 1; i < 50'000; ++i) absl::StrAppend(&text, ", ", i);
  const auto trace = LoadTrace(Gzipped(text + "]}\n"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->references, 50'000u);
}

TEST_F(TraceReaderTest, APrefixIsABlockAndAllBeforeIt) {
  const std::string line =
      R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": )";
  const auto trace = LoadTrace(Plain(
      absl::StrCat(line, "[5, 6]}\n", line, "[5, 7, 6]}\n", line, "[6]}\n", line, "[5, 7, 6]}\n")));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(trace->requests[0].blocks, ElementsAre(0, 1));
  EXPECT_THAT(trace->requests[1].blocks, ElementsAre(0, 2, 3));
  EXPECT_THAT(trace->requests[2].blocks, ElementsAre(4));
  EXPECT_THAT(trace->requests[3].blocks, ElementsAre(0, 2, 3));
  EXPECT_THAT(trace->parents, ElementsAre(Trace::kNoParent, 0, 0, 2, Trace::kNoParent));
  EXPECT_EQ(trace->references, 9u);
}

TEST_F(TraceReaderTest, ProgressEndsAtTheFilesEnd) {
  uint64_t calls = 0, last = 0, total = 0;
  const auto trace = LoadTrace(Plain(kMooncake), [&](uint64_t read, uint64_t of) {
    EXPECT_LE(last, read);
    ++calls, last = read, total = of;
  });
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(calls, 2u);
  EXPECT_EQ(last, total);
}

TEST_F(TraceReaderTest, TheExcerptOfAPublicTrace) {
  const auto trace = LoadTrace(TestsPath("data/mooncake_conversation_1000.jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), 1000u);
  for (const TraceRequest& request : trace->requests) {
    EXPECT_EQ(request.blocks.size(), (request.input_tokens + 511) / 512);
    EXPECT_EQ(request.blocks.front(), 0u);  // a system prompt that all share
  }
}

TEST_F(TraceReaderTest, FilesThatCannotBeRead) {
  EXPECT_EQ(LoadTrace(dir_.path() + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadTrace(dir_.path()).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* text : {"", "\n\n", " "}) {
    EXPECT_THAT(Read(text).message(), HasSubstr("has no requests"));
  }
}

TEST_F(TraceReaderTest, ErrorsNameLineAndField) {
  const struct {
    const char *line, *says;
  } cases[] = {
      {"{", "is not a JSON object"},
      {"[1]", "is not a JSON object"},
      {"\xff", "is not a JSON object"},
      {R"({"input_length":1,"output_length":1,"hash_ids":[]})", "has no timestamp"},
      {R"({"timestamp":"x","input_length":1,"output_length":1,"hash_ids":[]})",
       "timestamp must be a number"},
      {R"({"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]})",
       "timestamp must be a number"},
      {R"({"timestamp":1e300,"input_length":1,"output_length":1,"hash_ids":[]})",
       "timestamp must be a number"},
      {R"({"timestamp":1,"output_length":1,"hash_ids":[]})", "has no input_length"},
      {R"({"timestamp":1,"input_length":1.5,"output_length":1,"hash_ids":[]})",
       "input_length must be an integer from 0 to"},
      {R"({"timestamp":1,"input_length":1,"output_length":-1,"hash_ids":[]})",
       "output_length must be an integer from 0 to"},
      {R"({"timestamp":1,"input_length":99999999999,"output_length":1,"hash_ids":[]})",
       "input_length must be an integer from 0 to"},
      {R"({"timestamp":1,"input_length":1,"output_length":1})", "has no hash_ids"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":3})",
       "hash_ids must be a list"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[1,-2]})",
       "hash_ids[1] must be an integer"},
      {R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[1,2,"3"]})",
       "hash_ids[2] must be an integer"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Read(absl::StrCat(kMooncake, c.line, "\n"));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.line;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("trace.jsonl, line 3: ", c.says)))
        << c.line;
  }
}

TEST_F(TraceReaderTest, AfterAnErrorTheReaderIsAtItsEnd) {
  auto reader = TraceReader::Open(Plain(absl::StrCat(kBailian, "\n{}\n", kBailian)));
  ASSERT_TRUE(reader.ok());
  TraceRequest request;
  EXPECT_TRUE(reader->Next(request).value());
  EXPECT_FALSE(reader->Next(request).ok());
  EXPECT_FALSE(reader->Next(request).value());
}

TEST_F(TraceReaderTest, DamagedGzipIsDataLossNeverAShortTrace) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(&text, R"({"timestamp": )", i * 37 % 1001,
                    R"(, "input_length": 1, "output_length": 1, "hash_ids": [)", i, "]}\n");
  }
  const std::string path = Gzipped(text);
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (const size_t cut : {bytes.size() / 2, bytes.size() - 4, bytes.size() - 9}) {
    std::ofstream(path, std::ios::binary) << bytes.substr(0, cut);
    EXPECT_EQ(LoadTrace(path).status().code(), absl::StatusCode::kDataLoss) << cut;
  }
  bytes[bytes.size() - 6] ^= 1;  // of the checksum
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(LoadTrace(path).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvstow
