// Where tests find what they read and what they start.
//
// These are functions, not macros of each test: with macros that name a folder, ccache would take
// every test of a second checkout for a new one.
#ifndef KVSTOW_TESTS_PATHS_H_
#define KVSTOW_TESTS_PATHS_H_

#include <string>

namespace kvstow {

// The path of a file below tests/: TestsPath("golden/keys_v1.bin").
std::string TestsPath(const std::string& name);

// The path of a program that this build makes, in its folder bin: ProgramPath("kvstowd").
std::string ProgramPath(const std::string& name);

}  // namespace kvstow

#endif  // KVSTOW_TESTS_PATHS_H_
