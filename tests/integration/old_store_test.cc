// Stores that earlier releases wrote come back warm, byte for byte.
//
// tests/data/store-VERSION.tar.gz has what kvstowd VERSION left after kill -9: a store with a space
// for each recipe below, and the case that was put, 32 tokens in two pages. The digests are of K
// and V as that version gave them back. A release that changes a format adds its own store, and
// keeps the others.
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "tests/integration/cli_server.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

struct OldSpace {
  const char* name;
  const char* digest;  // of the tensors' bytes, in the order of their names
};

constexpr OldSpace kSpaces[] = {
    {"raw", "b3fb0f2619bb2eb198bb94cc77afd870"},
    {"lossless", "b3fb0f2619bb2eb198bb94cc77afd870"},
    {"int8", "e6de3b109d8f675d5ac93558b879d85f"},
    {"rotated8", "7b2d2ec58149d0c7d4ed0b8e70456d4d"},
    {"kvstow", "c367b052522931e343ec32f63927d4b8"},
    {"hot-cold", "dbebdb373f668c0cf3f55abbe898e26d"},
    {"sparse", "f1036ea719ae2eb4e77cf5fca10e8a6e"},
};

std::string DigestOf(const std::string& path) {
  const auto file = SafetensorsReader::Open(path);
  if (!file.ok()) return std::string(file.status().message());
  Xxh3Stream all;
  for (const auto& [name, tensor] : file->tensors()) all.Update(file->Data(tensor));
  return all.Finish().Hex();
}

class OldStore : public testing::TestWithParam<const char*> {
 protected:
  OldStore() {
    const std::string archive = TestsPath(absl::StrCat("data/store-", GetParam(), ".tar.gz"));
    EXPECT_EQ(RunProgram("/bin/tar", {"-xzf", archive, "-C", dir_.path()}).exit_code, 0) << archive;
  }
  void ExpectAllThere(const std::string& folder) {
    Daemon daemon("127.0.0.1:0", {"--disk-path", dir_.path(folder), "--disk-bytes", "256MiB",
                                  "--host-bytes", "64MiB"});
    const std::vector<std::string> environment = {"KVSTOW_SERVER=" + daemon.address()};
    for (const OldSpace& space : kSpaces) {
      const std::string out = dir_.path(absl::StrCat(space.name, ".safetensors"));
      const Finished got = RunKvstow(
          {"get", "--space", space.name, dir_.path("case.safetensors"), out, "--format", "json"},
          environment);
      EXPECT_EQ(got.exit_code, 0) << space.name << ": " << got.err;
      EXPECT_EQ(ParseLine(got)["hit_tokens"], 32) << space.name;
      EXPECT_EQ(DigestOf(out), space.digest) << space.name;
    }
    EXPECT_EQ(RunKvstow({"get", "--space", "dropped", dir_.path("case.safetensors"),
                         dir_.path("none"), "--format", "json"},
                        environment)
                  .exit_code,
              3)
        << "a space that was dropped stays dropped";
    const Finished verified = RunKvstow({"verify", "--format", "json"}, environment);
    EXPECT_EQ(verified.exit_code, 0) << verified.err;
  }

  const TempDir dir_;
};

TEST_P(OldStore, IsWarmAndTheSame) {
  ExpectAllThere("store");
  // What this version wrote over it comes back too.
  ExpectAllThere("store");
}

TEST_P(OldStore, IsTheSameFromACopyOfItsFolder) {
  ASSERT_EQ(RunProgram("/bin/cp", {"-a", dir_.path("store"), dir_.path("copy")}).exit_code, 0);
  ExpectAllThere("copy");
}

INSTANTIATE_TEST_SUITE_P(Release, OldStore, testing::Values("0.1.0"), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
});

}  // namespace
}  // namespace kvstow
