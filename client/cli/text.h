// Text for people: tables, numbers with units, and a progress bar.
#ifndef KVSTOW_CLIENT_CLI_TEXT_H_
#define KVSTOW_CLIENT_CLI_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace kvstow::cli {

// Formats rows under a heading. Two blanks separate columns. The first column is aligned left,
// columns of numbers right.
std::string FormatTable(const std::vector<std::string>& heading,
                        const std::vector<std::vector<std::string>>& rows);

// Formats lines of "name   value".
using Fields = std::vector<std::pair<std::string, std::string>>;
std::string FormatFields(const Fields& fields);

std::string FormatFixed(double value, int digits);          // "3.14"
std::string FormatRatio(uint64_t raw, uint64_t stored);     // "1.88x", "-" without bytes
double GigabytesPerSecond(uint64_t bytes, double seconds);  // 0 when no time passed
double SecondsSince(Time start);

// A line on standard error that shows the progress of a long task. Silent where standard error is
// no terminal. The line goes with the object.
class Progress {
 public:
  // `total` counts bytes, or the things that `unit` names.
  Progress(std::string what, uint64_t total, std::string unit = "");
  ~Progress();
  void Update(uint64_t done);

 private:
  const std::string what_, unit_;
  const uint64_t total_;
  const bool shown_;
  const Time start_;
  Time drawn_;
};

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_TEXT_H_
