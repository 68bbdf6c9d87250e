// What the tests of the command line share: a case, a daemon, and verbs that are pointed at it.
#ifndef KVSTOW_TESTS_INTEGRATION_CLI_SERVER_H_
#define KVSTOW_TESTS_INTEGRATION_CLI_SERVER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/case/safetensors.h"
#include "tests/integration/process.h"
#include "tests/paths.h"

namespace kvstow {

using Json = nlohmann::json;

inline const std::string kCase = TestsPath("data/smollm2-wiki-256.safetensors");
inline constexpr uint64_t kRawBytes = 256 * 30 * 3 * 64 * 2 * 2;

// Standard output as JSON: one object on one line.
inline Json ParseLine(const Finished& run) {
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
  const Json json = Json::parse(run.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << run.out << run.err;
  return json.is_object() ? json : Json::object();
}

inline void ExpectSameCase(const std::string& path, const std::string& original, uint64_t tokens) {
  const auto a = SafetensorsReader::Open(original), b = SafetensorsReader::Open(path);
  ASSERT_TRUE(a.ok() && b.ok()) << b.status();
  EXPECT_EQ(b->tensors().size(), 60u);
  for (const auto& [name, tensor] : b->tensors()) {
    const auto whole = a->Find(name);
    ASSERT_TRUE(whole.ok());
    ASSERT_EQ(tensor.shape, (std::vector<uint64_t>{tokens, 3, 64})) << name;
    EXPECT_TRUE(std::ranges::equal(a->Data(*whole).first(tensor.bytes), b->Data(tensor))) << name;
  }
}

// A daemon with a disk, and the verbs pointed at it.
class CliServer : public testing::Test {
 protected:
  Finished Run(std::vector<std::string> arguments) {
    return RunKvstow(arguments, {"KVSTOW_SERVER=" + daemon_.address()});
  }
  // The verb with --format json.
  Json RunJson(std::vector<std::string> arguments, int exit_code = 0) {
    arguments.insert(arguments.end(), {"--format", "json"});
    const Finished run = Run(arguments);
    EXPECT_EQ(run.exit_code, exit_code) << arguments[0] << ": " << run.err;
    return ParseLine(run);
  }

  TempDir dir_;
  const std::string out_ = dir_.path("out.safetensors");
  Daemon daemon_{"127.0.0.1:0", {"--disk-path", dir_.path("disk"), "--host-bytes", "64MiB"}};
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_INTEGRATION_CLI_SERVER_H_
