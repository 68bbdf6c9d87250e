#include "base/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/storage/temp_dir.h"

namespace kvstow {
namespace {

// A machine as files below a folder.
class ControlGroup : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = dir_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::optional<uint64_t> Limit(absl::string_view process = "self") const {
    return ControlGroupMemory(dir_.path(), process);
  }

  TempDir dir_;
};

TEST_F(ControlGroup, OfAServiceIsBelowTheRoot) {
  EXPECT_FALSE(Limit().has_value()) << "no files";
  Write("proc/self/cgroup", "0::/system.slice/kvstowd.service\n");
  Write("sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("sys/fs/cgroup/system.slice/kvstowd.service/memory.max", "max\n");
  EXPECT_FALSE(Limit().has_value()) << "no limit";
  Write("sys/fs/cgroup/system.slice/kvstowd.service/memory.max", "4294967296\n");
  EXPECT_EQ(Limit(), uint64_t{4} << 30);
  Write("sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
  EXPECT_EQ(Limit(), uint64_t{2} << 30) << "a group above has less";
  EXPECT_FALSE(Limit("42").has_value()) << "another process is in no group";
}

TEST_F(ControlGroup, OfAContainerIsTheRoot) {
  Write("sys/fs/cgroup/memory.max", "1073741824\n");
  Write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(Limit(), uint64_t{1} << 30);
  Write("proc/self/cgroup", "0::/docker/0123\n");
  EXPECT_EQ(Limit(), uint64_t{1} << 30) << "the folder is not there";
}

TEST_F(ControlGroup, OfTheFirstVersionHasAFolderForMemory) {
  Write("proc/self/cgroup", "9:cpu,cpuacct:/other\n4:memory:/system.slice/kvstowd.service\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/system.slice/kvstowd.service/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(Limit(), uint64_t{1} << 20);
}

}  // namespace
}  // namespace kvstow
