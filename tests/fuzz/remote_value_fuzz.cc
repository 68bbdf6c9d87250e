// Values of a remote store, as somebody who can write it may make them: in clear and sealed, and as
// bodies of frames that are right. Nothing crashes, nothing allocates from an unchecked length, and
// nobody without the key makes a sealed value that opens.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "service/remote/remote_frame.h"
#include "service/remote/remote_key_record.h"
#include "service/remote/remote_page.h"
#include "service/remote/remote_purge.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/space_record.h"

namespace {

using namespace kvstow;

void Check(bool ok) {
  if (!ok) std::abort();
}

SharedBytes Joined(const std::vector<SharedBytes>& parts) {
  std::string bytes;
  for (const SharedBytes& part : parts) absl::StrAppend(&bytes, AsString(part.span()));
  return SharedBytes::Take(std::move(bytes));
}

void ParseSpaceOf(std::span<const uint8_t> body) {
  static auto* const none = new Calibrations("");
  const auto space = ParseSpace(body, *none);
  if (!space.ok()) return;
  const std::string again = SerializeSpace(**space, EraOfSpace(body));
  Check(ParseSpace(AsBytes(again), *none).ok());
}

void ParseAll(const RemotePlace& place, const SharedBytes& value) {
  ParseRecordValue(place, "key", value).IgnoreError();
  ParseSegmentValue(place, 1, {.bytes = 4, .gain = 1, .digest = 0}, value).IgnoreError();
  const auto purge = ParsePurgeValue(place, value);
  if (purge.ok())
    Check(ParsePurgeValue(place, Joined(PurgeValue(place, *purge))).value() == *purge);
  const auto space = OpenFramed(place, RemoteKind::kSpace, 0, value);
  if (space.ok()) ParseSpaceOf(space->body.span());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const SharedBytes bytes = SharedBytes::CopyOf({data, size});
  const RemotePlace clear;
  const RemotePlace sealed = {
      {}, std::make_shared<const RemoteKey>(1, SecretKey(std::array<uint8_t, kAeadKeyBytes>{3}))};
  for (const RemotePlace& place : {clear, sealed}) ParseAll(place, bytes);
  Check(!OpenFramed(sealed, RemoteKind::kRecord, 0, bytes).ok());
  // The frame is right.
  for (const RemotePlace& place : {clear, sealed}) {
    for (const RemoteKind kind :
         {RemoteKind::kRecord, RemoteKind::kSegment, RemoteKind::kPurge, RemoteKind::kSpace,
          RemoteKind::kCalibration, RemoteKind::kCalibrationPart}) {
      const SharedBytes value = Joined(FramedValue(place, kind, 0, Digested(bytes)));
      Check(OpenFramed(place, kind, 0, value).ok());
      ParseAll(place, value);
    }
  }
  const RemotePlace key = {KeyTagOf("t"), nullptr};
  const auto record =
      ParseKeyRecord("t", Joined(FramedValue(key, RemoteKind::kKey, 0, Digested(bytes))));
  if (record.ok()) {
    Check(ParseKeyRecord("t", Joined(KeyRecordValue("t", *record))).value() == *record);
    Unwrap({}, "t", *record).IgnoreError();
  }
  return 0;
}
