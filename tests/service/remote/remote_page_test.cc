// Values of the remote store: bytes as docs/FORMAT.md gives them, bound to their places.
#include "service/remote/remote_page.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "service/remote/remote_frame.h"
#include "service/remote/remote_purge.h"

namespace kvstow {
namespace {

Space SpaceNamed(const std::string& name) {
  Space space;
  space.name = name;
  space.tenant = "t";
  space.fingerprint.fill(7);
  return space;
}

SharedBytes Joined(const std::vector<SharedBytes>& parts) {
  std::string bytes;
  for (const SharedBytes& part : parts) absl::StrAppend(&bytes, AsString(part.span()));
  return SharedBytes::Take(std::move(bytes));
}

PageRecord Record() {
  PageRecord record{.number = 42,
                    .name = {.space = 9, .key = "key"},
                    .header = SharedBytes::Take(std::string("header")),
                    .raw_bytes = 100,
                    .first_position = 64,
                    .tokens = 16,
                    .parent = 5};
  record.facts.push_back({.bytes = 4, .gain = 1, .digest = Xxh3(AsBytes("body"))});
  return record;
}

RemotePlace ClearPlace(const std::string& key) {
  return PlaceOf(SpaceNamed("s"), {.generation = 0, .key = nullptr}, key);
}

TEST(RemotePage, NamesDependOnAllThatAPageIs) {
  const Space space = SpaceNamed("s");
  const RemoteTag tag = TagOf(space, 0, "key");
  EXPECT_EQ(RecordName("p", tag), "p:{" + HexOf(tag.bytes) + "}:r");
  EXPECT_EQ(SegmentName("p", tag, 12), "p:{" + HexOf(tag.bytes) + "}:12");
  EXPECT_EQ(HexOf(tag.bytes), "2e3a1be0665dd45984b58dfafad7fa5d") << "docs/FORMAT.md";
  Space other = SpaceNamed("s");
  other.tenant = "u";
  EXPECT_NE(TagOf(other, 0, "key"), tag);
  other = SpaceNamed("s");
  other.fingerprint[0] = 0;
  EXPECT_NE(TagOf(other, 0, "key"), tag);
  EXPECT_NE(TagOf(SpaceNamed("r"), 0, "key"), tag);
  EXPECT_NE(TagOf(space, 1, "key"), tag);
  EXPECT_NE(TagOf(space, 0, "kez"), tag);
}

TEST(RemotePage, ARecordComesBackAndASegmentTogetherWithIt) {
  const RemotePlace tag = ClearPlace("key");
  const auto record = ParseRecordValue(tag, "key", Joined(RecordValue(tag, Record())));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->tokens, 16u);
  EXPECT_EQ(record->name.space, 0u) << "ids of one server mean nothing to others";
  EXPECT_FALSE(record->parent.has_value());
  const SharedBytes body = SharedBytes::Take(std::string("body"));
  const auto back = ParseSegmentValue(tag, 0, record->facts[0],
                                      Joined(SegmentValue(tag, 0, record->facts[0], body)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(AsString(back->span()), "body");
}

// It would mean something else here.
TEST(RemotePage, ARecordWithWhatOneServerGaveIsRefused) {
  const RemotePlace tag = ClearPlace("key");
  const auto parse = [&](const std::function<void(PageRecord&)>& change) {
    PageRecord record = Record();
    record.number = 1;
    record.name.space = 0;
    record.parent.reset();
    change(record);
    const SharedBytes bytes = SharedBytes::Take(SerializePageRecord(record));
    const auto value = Joined(FramedValue(tag, RemoteKind::kRecord, 0, Digested(bytes)));
    return ParseRecordValue(tag, "key", value).status();
  };
  EXPECT_EQ(parse([](PageRecord&) {}), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(parse([](PageRecord& r) { r.number = 2; })));
  EXPECT_TRUE(absl::IsDataLoss(parse([](PageRecord& r) { r.name.space = 1; })));
  EXPECT_TRUE(absl::IsDataLoss(parse([](PageRecord& r) { r.parent = 5; })));
}

TEST(RemotePage, AValueThatIsElsewhereOrChangedIsRefused) {
  const RemotePlace tag = ClearPlace("key"), other = ClearPlace("kez");
  const SegmentFacts facts = Record().facts[0];
  const SharedBytes body = SharedBytes::Take(std::string("body"));
  const SharedBytes segment = Joined(SegmentValue(tag, 0, facts, body));
  const SharedBytes record = Joined(RecordValue(tag, Record()));
  EXPECT_TRUE(absl::IsDataLoss(ParseSegmentValue(other, 0, facts, segment).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseSegmentValue(tag, 1, facts, segment).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseSegmentValue(tag, 0, facts, record).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseRecordValue(other, "kez", record).status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseRecordValue(tag, "kez", record).status()));
  EXPECT_TRUE(absl::IsAborted(
      ParseSegmentValue(tag, 0, {.bytes = 4, .gain = 1, .digest = 1}, segment).status()));
  for (const SharedBytes& value : {segment, record}) {
    for (size_t at = 0; at < value.size(); ++at) {
      std::string bytes(AsString(value.span()));
      EXPECT_FALSE(ParseRecordValue(tag, "key", SharedBytes::Take(bytes.substr(0, at))).ok());
      EXPECT_FALSE(ParseSegmentValue(tag, 0, facts, SharedBytes::Take(bytes.substr(0, at))).ok());
      bytes[at] = static_cast<char>(bytes[at] ^ 16);
      EXPECT_FALSE(ParseRecordValue(tag, "key", SharedBytes::Take(bytes)).ok()) << at;
      EXPECT_FALSE(ParseSegmentValue(tag, 0, facts, SharedBytes::Take(bytes)).ok()) << at;
    }
  }
}

TEST(RemotePage, BytesAreThoseOfTheFormat) {
  const RemotePlace tag = ClearPlace("key");
  const SegmentFacts facts = Record().facts[0];
  const SharedBytes body = SharedBytes::Take(std::string("body"));
  EXPECT_EQ(HexOf(Joined(SegmentValue(tag, 3, facts, body)).span()),
            "6b765256010002000400000000000000fae17f18eec8f284d4aa649e36986f7a626f6479");
  EXPECT_EQ(HexOf(Joined(FramedValue({NameTagOf("t", "s"), nullptr}, RemoteKind::kSpace, 0,
                                     Digested(SharedBytes::Take(std::string("record")))))
                      .span()),
            "6b765256010004000600000000000000ab1bf917d4f27150816d33bcccd578977265636f7264");
  EXPECT_EQ(HexOf(Joined(RecordValue(tag, Record())).span()),
            "6b765256010001006300000000000000a9e51e5d8196b9ba5d8b402b5c6da315"
            "6b7650470100000001000000000000000000000003006b657900000000000000000000000000000000"
            "64000000000000004000000000000000100000000600000068656164657201000000"
            "040000000000803ffae17f18eec8f28451e8cda685e99a28");
  EXPECT_EQ(
      HexOf(Joined(PurgeValue({SpaceTagOf(SpaceNamed("s")), nullptr}, {2, {{5, "key"}}})).span()),
      "6b7652560100030019000000000000002d7646ef62d22e1ab3e90b6934fabed402000000000000000100000005"
      "0000000000000003006b6579");
}

TEST(RemotePage, APurgeRecordComesBack) {
  const RemotePlace space = {SpaceTagOf(SpaceNamed("s")), nullptr};
  const PurgeRecord record{.generation = 3, .deleted = {{1, "a"}, {2, "b"}}};
  const SharedBytes value = Joined(PurgeValue(space, record));
  const auto back = ParsePurgeValue(space, value);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, record);
  EXPECT_FALSE(ParsePurgeValue({SpaceTagOf(SpaceNamed("r")), nullptr}, value).ok());
  for (size_t at = 0; at < value.size(); ++at) {
    EXPECT_FALSE(ParsePurgeValue(space, value.Slice(0, at)).ok()) << at;
  }
  for (const size_t size : {0, 1, 64, 65}) {
    const SharedBytes of_key = Joined(PurgeValue(space, {3, {{1, std::string(size, 'k')}}}));
    const absl::Status status = ParsePurgeValue(space, of_key).status();
    EXPECT_EQ(status.code(),
              size == 1 || size == 64 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << size << ": " << status;
  }
}

}  // namespace
}  // namespace kvstow
