// The lines of a log whose messages are JSON objects: of AuditLog() or CallsLog() (base/log.h).
#ifndef KVSTOW_TESTS_LOG_LINES_H_
#define KVSTOW_TESTS_LOG_LINES_H_

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvstow::testing {

// Takes what the process writes to standard error while it lives. There is one at a time.
class LogLines {
 public:
  // `name` is the log's: "audit" or "call".
  explicit LogLines(const std::string& name) : mark_(absl::StrCat(" ", name, " ")) {
    ::testing::internal::CaptureStderr();
  }
  ~LogLines() { (void)::testing::internal::GetCapturedStderr(); }
  // Returns the lines since the last time.
  std::vector<nlohmann::json> Take() {
    std::stringstream text(::testing::internal::GetCapturedStderr());
    ::testing::internal::CaptureStderr();
    std::vector<nlohmann::json> out;
    for (std::string line; std::getline(text, line);) {
      const size_t at = line.find(mark_ + "{");
      if (at != std::string::npos) {
        out.push_back(nlohmann::json::parse(line.substr(at + mark_.size())));
      }
    }
    return out;
  }

 private:
  const std::string mark_;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_LOG_LINES_H_
