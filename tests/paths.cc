#include "tests/paths.h"

namespace kvstow {

std::string TestsPath(const std::string& name) { return KVSTOW_TESTS_DIR "/" + name; }

std::string ProgramPath(const std::string& name) { return KVSTOW_BIN_DIR "/" + name; }

}  // namespace kvstow
