#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "client/cli/doctor/findings.h"
#include "client/cli/doctor/host_facts.h"
#include "tests/storage/temp_dir.h"

namespace kvstow::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

// A machine as files below a folder.
class FakeHost {
 public:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = dir_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  HostFacts Read() const { return ReadHost(dir_.path()); }

 private:
  TempDir dir_;
};

auto Is(const std::string& subject, Verdict verdict, const std::string& advice) {
  return AllOf(Field("subject", &Finding::subject, subject),
               Field("verdict", &Finding::verdict, verdict),
               Field("advice", &Finding::advice, HasSubstr(advice)));
}

TEST(HostFacts, AreReadFromTheKernelsFiles) {
  FakeHost host;
  host.Write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
  host.Write("proc/42/cgroup", "0::/system.slice/kvstowd.service\n");
  host.Write("sys/fs/cgroup/system.slice/kvstowd.service/memory.max", "4294967296\n");
  host.Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  host.Write("sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size [advise] never deny force\n");
  host.Write("proc/41/comm", "bash\n");
  host.Write("proc/42/comm", "kvstowd\n");
  host.Write("proc/42/limits",
             "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  524288  files\n");
  host.Write("proc/net/tcp",
             "  sl  local_address rem_address   st\n"
             "   0: 0100007F:1CD4 00000000:0000 0A\n"    // 127.0.0.1:7380
             "   1: 00000000:1CD5 00000000:0000 0A\n"    // 0.0.0.0:7381
             "   2: 00000000:1CD6 00000000:0000 01\n");  // a connection
  host.Write(
      "proc/net/tcp6",
      "   0: 00000000000000000000000001000000:1CD4 00000000000000000000000000000000:0000 0A\n"
      "   1: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A\n");
  const HostFacts facts = host.Read();
  EXPECT_EQ(facts.memory_bytes, uint64_t{4} << 30);
  EXPECT_EQ(facts.huge_pages, "never");
  EXPECT_EQ(facts.shared_huge_pages, "advise");
  EXPECT_EQ(facts.server_processes, 1u);
  EXPECT_EQ(facts.open_files, 1024u);
  EXPECT_FALSE(facts.has_gpu);
  EXPECT_THAT(facts.open_ports, ElementsAre(7381, 22));
}

TEST(HostFacts, ThatAreNotThereAreAbsent) {
  const HostFacts facts = FakeHost().Read();
  EXPECT_FALSE(facts.memory_bytes.has_value());
  EXPECT_EQ(facts.huge_pages, "");
  EXPECT_FALSE(facts.open_files.has_value());
  for (const Finding& f : FindHost(facts, {})) {
    EXPECT_NE(f.verdict, Verdict::kWrong) << f.subject;
    EXPECT_NE(f.found, "") << f.subject;
  }
}

TEST(HostFindings, AWellSetMachineHasNothingToDo) {
  const HostFacts facts{.memory_bytes = uint64_t{64} << 30,
                        .huge_pages = "madvise",
                        .shared_huge_pages = "advise",
                        .open_files = 65536,
                        .clock_synchronised = true,
                        .server_processes = 1};
  for (const Finding& f :
       FindHost(facts, {{"host-bytes", "16.0 GiB"}, {"listen", "127.0.0.1:7380"}})) {
    EXPECT_EQ(f.verdict, Verdict::kOk) << f.subject << ": " << f.found;
    EXPECT_EQ(f.advice, "") << f.subject;
  }
}

TEST(HostFindings, SayWhatToDo) {
  const HostFacts facts{.memory_bytes = uint64_t{16} << 30,
                        .huge_pages = "never",
                        .shared_huge_pages = "never",
                        .open_files = 1024,
                        .clock_synchronised = false,
                        .server_processes = 1};
  const auto findings = FindHost(facts, {{"host-bytes", "15.0 GiB"},
                                         {"index-bytes", "1.00 GiB"},
                                         {"local-socket", "/run/kvstow/local.sock"},
                                         {"local-bytes", "1.00 GiB"},
                                         {"device", "cuda:0"},
                                         {"listen", "0.0.0.0:7380"}});
  EXPECT_THAT(findings, Contains(Is("memory", Verdict::kWrong, "lower host-bytes")));
  EXPECT_THAT(findings, Contains(Is("huge pages", Verdict::kWarning, "echo madvise")));
  EXPECT_THAT(findings, Contains(Is("huge pages", Verdict::kWarning, "shmem_enabled")));
  EXPECT_THAT(findings, Contains(Is("open files", Verdict::kWarning, "LimitNOFILE")));
  EXPECT_THAT(findings, Contains(Is("clock", Verdict::kWarning, "chrony")));
  EXPECT_THAT(findings, Contains(Is("GPU", Verdict::kWrong, "driver")));
  EXPECT_THAT(findings, Contains(Is("listeners", Verdict::kWarning, "no TLS")));
}

TEST(HostFindings, KvEventsHaveNoTlsWhateverTheOthersHave) {
  std::map<std::string, std::string> settings = {
      {"listen", "0.0.0.0:7380"}, {"tls-cert", "/c.pem"}, {"kv-events-listen", "127.0.0.1:5557"}};
  EXPECT_THAT(FindHost({}, settings), Contains(Is("listeners", Verdict::kOk, "")));
  settings["kv-events-listen"] = "0.0.0.0:5557";
  settings["kv-events-replay-listen"] = "0.0.0.0:5558";
  const auto findings = FindHost({}, settings);
  EXPECT_THAT(findings, Contains(Is("listeners", Verdict::kWarning, "kv-events-listen")));
  EXPECT_THAT(findings, Contains(Is("listeners", Verdict::kWarning, "kv-events-replay-listen")));
}

TEST(HostFindings, AGpuThatNobodyUsesIsNamed) {
  const HostFacts facts{.has_gpu = true};
  EXPECT_THAT(FindHost(facts, {{"device", "cpu"}}), Contains(Is("GPU", Verdict::kWarning, "auto")));
  EXPECT_THAT(FindHost(facts, {{"device", "auto"}, {"gpu-bytes", "0 B"}}),
              Contains(Is("GPU", Verdict::kWarning, "gpu-bytes")));
}

TEST(ServerFindings, TellWhetherItAnswersAndWhichVersionItIs) {
  EXPECT_THAT(FindServer({.address = "a:1", .error = "no operators' calls"}, "1.0"),
              ElementsAre(Is("server", Verdict::kUnknown, "")));
  EXPECT_THAT(FindServer({.address = "a:1", .error = "cannot reach a:1", .answers = false}, "1.0"),
              ElementsAre(Is("server", Verdict::kWrong, "")));
  EXPECT_THAT(FindServer({.address = "a:1", .version = "1.0", .ready = true}, "1.0"),
              ElementsAre(Is("server", Verdict::kOk, "")));
  EXPECT_THAT(FindServer({.address = "a:1", .version = "1.0", .ready = false}, "1.0"),
              ElementsAre(Is("server", Verdict::kWarning, "`kvstow drain --resume`")));
  EXPECT_THAT(FindServer({.address = "a:1", .version = "0.9", .ready = true}, "1.0"),
              ElementsAre(Is("server", Verdict::kWarning, "same version")));
  EXPECT_THAT(
      FindServer({.address = "a:1", .version = "1.0", .ready = true, .on_this_host = false}, "1.0"),
      Contains(Is("machine", Verdict::kWarning, "on the server's")));
}

TEST(DiskFindings, TellPlaceRoomAndSpeed) {
  const std::map<std::string, std::string> settings = {{"disk-path", "/data"},
                                                       {"disk-bytes", "200 GiB"}};
  const FolderFacts small{
      .exists = true, .file_system = "tmpfs", .in_memory = true, .total_bytes = 100 << 20};
  const auto bad = FindDisk(small, DiskSpeed{.write_mb_s = 90, .read_mb_s = 500}, "", settings);
  EXPECT_THAT(bad, Contains(Is("disk", Verdict::kWarning, "name a disk")));
  EXPECT_THAT(bad, Contains(Is("disk room", Verdict::kWrong, "lower it")));
  EXPECT_THAT(bad, Contains(Is("disk speed", Verdict::kWarning, "NVMe")));
  EXPECT_THAT(FindDisk(small, std::nullopt, "Permission denied", settings),
              Contains(AllOf(Field(&Finding::verdict, Verdict::kUnknown),
                             Field(&Finding::found, "Permission denied"))));
  EXPECT_THAT(FindDisk({}, std::nullopt, "", {{"listen", "127.0.0.1:7380"}}),
              ElementsAre(Is("disk", Verdict::kWarning, "disk-path")));
  EXPECT_THAT(FindDisk({}, std::nullopt, "", {}), ElementsAre(Is("disk", Verdict::kUnknown, "")));
}

TEST(Folder, IsSeenAndMeasuredAndLeftAsItWas) {
  const TempDir dir;
  const std::string folder = dir.path() + "/store", none = dir.path() + "/none";
  std::filesystem::create_directory(folder);
  chmod(folder.c_str(), 0755);
  const FolderFacts facts = ReadFolder(folder);
  EXPECT_TRUE(facts.exists);
  EXPECT_TRUE(facts.writable);
  EXPECT_TRUE(facts.others_may_enter);
  EXPECT_GT(facts.total_bytes, 0u);
  EXPECT_FALSE(ReadFolder(none).exists);
  EXPECT_EQ(ReadFolder(none).total_bytes, facts.total_bytes);

  std::string why;
  const auto speed = MeasureDisk(folder, 8 << 20, why);
  ASSERT_TRUE(speed.has_value()) << why;
  EXPECT_GT(speed->write_mb_s, 0);
  EXPECT_GT(speed->read_mb_s, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_FALSE(MeasureDisk(none, 8 << 20, why).has_value());
  EXPECT_THAT(why, HasSubstr("No such file"));
}

TEST(Settings, AreReadFromAConfigurationFile) {
  EXPECT_THAT(ParseSettings("# comment\nlisten = \"127.0.0.1:7380\"  # here\n\nhost-bytes=8GiB\n"
                            "empty = \"\"\nno value\n"),
              ElementsAre(std::pair("empty", ""), std::pair("host-bytes", "8GiB"),
                          std::pair("listen", "127.0.0.1:7380")));
}

}  // namespace
}  // namespace kvstow::cli
