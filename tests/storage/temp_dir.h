#ifndef KVSTOW_TESTS_STORAGE_TEMP_DIR_H_
#define KVSTOW_TESTS_STORAGE_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvstow {

// A folder of its own for each test, removed afterwards.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "kvstow-XXXXXX").string();
    path_ = mkdtemp(name.data()) == nullptr ? "" : name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_TEMP_DIR_H_
