// Where settings come from, and what is said about those that are wrong.
#include "service/ops/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "service/ops/address.h"
#include "service/ops/listeners.h"

namespace kvstow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  absl::StatusOr<CommandLine> Parse(std::vector<const char*> args) {
    return ParseCommandLine(
        args,
        [this](const char* name) -> const char* {
          const auto it = environment_.find(name);
          return it == environment_.end() ? nullptr : it->second.c_str();
        },
        "kvstowd 1.2.3");
  }
  Config Good(std::vector<const char*> args) {
    auto parsed = Parse(std::move(args));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->config : Config{};
  }
  std::string Error(std::vector<const char*> args) {
    const auto parsed = Parse(std::move(args));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
    return std::string(parsed.status().message());
  }
  std::string File(const std::string& text) {
    const auto path = std::filesystem::path(::testing::TempDir()) /
                      ("kvstow_config_" + std::to_string(getpid()) + ".conf");
    std::ofstream(path) << text;
    return path.string();
  }

  std::map<std::string, std::string> environment_;
};

TEST_F(ConfigTest, WithNothingItServesOnLoopbackFromAQuarterOfTheMemory) {
  const Config c = Good({});
  EXPECT_EQ(c.listen, "127.0.0.1:7380");
  EXPECT_EQ(c.http_listen, "127.0.0.1:7381");
  EXPECT_EQ(c.host_bytes, UsableMemory() / 4);
  EXPECT_GT(c.host_bytes, 0u);
  EXPECT_EQ(c.access, "");
  EXPECT_EQ(c.admin_listen, "auto");
  EXPECT_EQ(c.disk_path, "");
  EXPECT_EQ(c.disk_bytes, 0u);
  EXPECT_EQ(c.gpu_bytes, 0u);
  EXPECT_EQ(c.lease_ttl, std::chrono::seconds(10));
  EXPECT_EQ(c.idle_timeout, std::chrono::minutes(5));
}

TEST_F(ConfigTest, AMasterKeyServesTheRemoteTierAlone) {
  EXPECT_EQ(Good({"--remote", "a:1", "--master-key", "env:KEY"}).master_key, "env:KEY");
}

TEST_F(ConfigTest, EveryListenerThatOthersMayReachIsWarnedOf) {
  const auto warned = [&](std::vector<const char*> args) {
    std::vector<std::string> names;
    for (const std::string& warning : WarningsOfListeners(Good(std::move(args)))) {
      EXPECT_THAT(warning, HasSubstr("has no TLS"));
      names.push_back(warning.substr(0, warning.find(" has no TLS")));
    }
    return names;
  };
  EXPECT_THAT(warned({}), ElementsAre());
  EXPECT_THAT(warned({"--listen", "unix:/s", "--http-listen", "off"}), ElementsAre());
  EXPECT_THAT(warned({"--listen", "localhost:1", "--http-listen", "[::1]:2", "--direct-listen",
                      "127.0.0.2:3"}),
              ElementsAre());
  EXPECT_THAT(
      warned({"--listen", "0.0.0.0:1"}),
      ElementsAre("listen: 0.0.0.0:1", "direct-listen: auto, a port on the host of 0.0.0.0:1"));
  EXPECT_THAT(warned({"--listen", "0.0.0.0:1", "--direct-listen", "off"}),
              ElementsAre("listen: 0.0.0.0:1"));
  EXPECT_THAT(warned({"--direct-listen", "[::]:1"}), ElementsAre("direct-listen: [::]:1"));
  EXPECT_THAT(warned({"--http-listen", "10.0.0.1:1"}), ElementsAre("http-listen: 10.0.0.1:1"));
  EXPECT_THAT(warned({"--kv-events-listen", "0.0.0.0:1", "--kv-events-replay-listen", "[::]:2"}),
              ElementsAre("kv-events-listen: 0.0.0.0:1", "kv-events-replay-listen: [::]:2"));
}

TEST_F(ConfigTest, AListenerThatOthersMayReachNeedsTlsOrTheWordInsecure) {
  const auto refused = [&](std::vector<const char*> args) {
    return std::string(CheckListeners(Good(std::move(args))).message());
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_EQ(refused({"--listen", "unix:/s", "--http-listen", "[::1]:2"}), "");
  EXPECT_EQ(refused({"--listen", "0.0.0.0:1", "--insecure"}), "");
  EXPECT_EQ(refused({"--insecure", "--listen", "0.0.0.0:1", "--kv-events-listen", "[::]:2"}), "");
  EXPECT_THAT(refused({"--listen", "0.0.0.0:1", "--insecure", "false"}),
              HasSubstr("listen: 0.0.0.0:1; direct-listen: auto"));
  EXPECT_THAT(refused({"--http-listen", "10.0.0.1:1"}),
              AllOf(HasSubstr("http-listen: 10.0.0.1:1: others can reach this and it has no TLS"),
                    HasSubstr("give --tls-cert and --tls-key"), HasSubstr("--insecure")));
  const char* const tls[] = {"--tls-cert", "c.pem", "--tls-key", "c.key"};
  const auto with_tls = [&](std::vector<const char*> args) {
    args.insert(args.end(), std::begin(tls), std::end(tls));
    return args;
  };
  EXPECT_EQ(refused(with_tls({"--listen", "0.0.0.0:1", "--http-listen", "[::]:2"})), "");
  EXPECT_THAT(refused(with_tls({"--listen", "0.0.0.0:1", "--kv-events-listen", "0.0.0.0:2"})),
              AllOf(HasSubstr("kv-events-listen: 0.0.0.0:2: others can reach this"),
                    HasSubstr("KV events go by ZeroMQ, which has none")));
}

TEST_F(ConfigTest, WithTlsOnlyListenersThatAskNobodyAreWarnedOf) {
  const std::vector<const char*> args = {"--listen",   "0.0.0.0:1", "--direct-listen", "off",
                                         "--tls-cert", "c.pem",     "--tls-key",       "c.key"};
  EXPECT_THAT(WarningsOfListeners(Good(args)),
              ElementsAre(HasSubstr("listen: 0.0.0.0:1 asks nobody who they are")));
  auto mutual = args;
  mutual.insert(mutual.end(), {"--tls-client-ca", "ca.pem"});
  EXPECT_THAT(WarningsOfListeners(Good(mutual)), ElementsAre());
}

TEST_F(ConfigTest, ASwitchStandsAloneOrHasAValue) {
  EXPECT_FALSE(Good({}).insecure);
  EXPECT_TRUE(Good({"--insecure"}).insecure);
  EXPECT_TRUE(Good({"--insecure", "--listen", "[::1]:1"}).insecure);
  EXPECT_TRUE(Good({"--insecure=true"}).insecure);
  EXPECT_TRUE(Good({"--config", File("insecure = true\n").c_str()}).insecure);
  environment_ = {{"KVSTOW_INSECURE", "true"}};
  EXPECT_TRUE(Good({}).insecure);
  EXPECT_FALSE(Good({"--insecure", "false"}).insecure) << "the flag wins";
  environment_ = {{"KVSTOW_INSECURE", "yes"}};
  EXPECT_THAT(Error({}), HasSubstr("insecure: 'yes' is not true or false"));
}

TEST_F(ConfigTest, FlagBeforeEnvironmentBeforeFileBeforeDefault) {
  const std::string file = File("host-bytes = \"1GiB\"\nrecipe = \"raw\"\nlisten = \"[::1]:1\"\n");
  environment_ = {{"KVSTOW_HOST_BYTES", "2GiB"}, {"KVSTOW_RECIPE", "int8"}, {"KVSTOW_DEVICE", ""}};
  const Config c = Good({"--config", file.c_str(), "--host-bytes", "3GiB"});
  EXPECT_EQ(c.host_bytes, uint64_t{3} << 30) << "the flag wins over both";
  EXPECT_EQ(c.recipe, "int8") << "the environment wins over the file";
  EXPECT_EQ(c.listen, "[::1]:1") << "the file wins over the default";
  EXPECT_EQ(c.device, "auto") << "an empty variable is none";
  EXPECT_EQ(c.config, file);
}

TEST_F(ConfigTest, TheFileCanComeFromTheEnvironment) {
  environment_ = {{"KVSTOW_CONFIG", File("lease-ttl = \"1500ms\"\n")}};
  EXPECT_EQ(Good({}).lease_ttl, std::chrono::milliseconds(1500));
}

TEST_F(ConfigTest, EverySettingIsFlagVariableKeyAndDescription) {
  const Config defaults = Good({});
  const auto described = Describe(defaults);
  const auto help = Parse({"--help"});
  ASSERT_TRUE(help.ok());
  std::vector<std::string> names;
  for (const auto& [name, value] : described) {
    EXPECT_THAT(help->print, HasSubstr("--" + name));
    names.push_back(name);
  }
  EXPECT_THAT(
      names,
      ::testing::UnorderedElementsAre(
          "listen", "http-listen", "access", "admin-listen", "direct-listen", "tls-cert", "tls-key",
          "tls-client-ca", "insecure", "gpu-bytes", "host-bytes", "disk-path", "kv-events-listen",
          "kv-events-connect", "kv-events-replay-listen", "kv-events-name", "disk-bytes",
          "master-key", "host-bits", "disk-bits", "local-socket", "local-bytes", "local-gpu-bytes",
          "remote", "remote-prefix", "remote-user", "remote-password-file", "remote-tls-ca",
          "remote-wait", "remote-ttl", "remote-bytes-per-second", "recipe", "calibrations",
          "eviction-policy", "lease-ttl", "index-bytes", "max-leases", "max-leased-pages",
          "get-bytes", "put-bytes", "max-streams", "stream-idle", "idle-timeout", "max-spaces",
          "private-space-idle", "high-watermark", "low-watermark", "scrub-bytes-per-second",
          "fit-bytes", "slow-call", "log-level", "log-format", "config", "device"));
  EXPECT_THAT(help->print, HasSubstr("Examples:"));
  EXPECT_THAT(help->print, HasSubstr("kvstow, lru, slru")) << "the policies of the table";
}

TEST_F(ConfigTest, VersionIsPrinted) {
  const auto parsed = Parse({"--version"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->print, "kvstowd 1.2.3\n");
}

TEST_F(ConfigTest, WhatIsWrongIsNamed) {
  const struct {
    std::vector<const char*> args;
    const char* says;
  } kCases[] = {
      {{"--host-bytes", "lots"}, "host-bytes: 'lots' is not a size"},
      {{"--listen", "nowhere"}, "listen: 'nowhere' is not an address"},
      {{"--listen", "1.2.3.4:70000"}, "listen: '1.2.3.4:70000' is not an address"},
      {{"--listen", "::1:80"}, "put an IPv6 host in brackets"},
      {{"--http-listen", "unix:/tmp/x"}, "http-listen: 'unix:/tmp/x' is not HOST:PORT"},
      {{"--direct-listen", "unix:/tmp/x"}, "direct-listen: 'unix:/tmp/x' is not HOST:PORT"},
      {{"--admin-listen", "here"}, "admin-listen: 'here' is not an address"},
      {{"--kv-events-listen", "unix:/x"}, "kv-events-listen: 'unix:/x' is not HOST:PORT or off"},
      {{"--kv-events-connect", "off"}, "kv-events-connect: 'off' is not an address"},
      {{"--kv-events-connect", "unix:/x"}, "kv-events-connect: 'unix:/x' is not HOST:PORT"},
      {{"--kv-events-name", "a@b"}, "kv-events-name: 'a@b' is not a name without an @"},
      {{"--kv-events-replay-listen", "0.0.0.0:1"},
       "kv-events-replay-listen needs kv-events-listen"},
      {{"--device", "cuda:x"}, "device: 'cuda:x' is not a device"},
      {{"--eviction-policy", "mru"},
       "eviction-policy: there is no eviction policy 'mru': use one of kvstow, lru"},
      {{"--lease-ttl", "10"}, "lease-ttl: '10' is not a time"},
      {{"--stream-idle", "0s"}, "stream-idle: '0s' is not a time"},
      {{"--max-streams", "0"}, "max-streams: '0' is not a number from 1 on"},
      {{"--high-watermark", "1.5"}, "high-watermark: '1.5' is not a fraction"},
      {{"--low-watermark", "0.99"}, "low-watermark 0.99 is above high-watermark 0.95"},
      {{"--tls-cert", "c.pem"}, "tls-cert needs tls-key"},
      {{"--tls-key", "c.key"}, "tls-key needs tls-cert"},
      {{"--tls-client-ca", "ca.pem"}, "tls-client-ca needs tls-cert"},
      {{"--insecure=maybe"}, "insecure: 'maybe' is not true or false"},
      {{"--disk-bytes", "1GB"}, "disk-bytes needs disk-path"},
      {{"--disk-bits", "4"}, "disk-bits needs disk-path"},
      {{"--local-gpu-bytes", "1GB"}, "local-gpu-bytes needs local-socket"},
      {{"--host-bits", "-1"}, "bits of a value"},
      {{"--master-key", "/etc/key"}, "not a source of a key"},
      {{"--master-key", "env:KEY"}, "master-key needs disk-path or remote"},
      {{"--remote", "unix:/tmp/redis"}, "remote: 'unix:/tmp/redis' is not HOST:PORT"},
      {{"--remote", "a:1,b"}, "remote: 'b' is not an address"},
      {{"--remote-prefix", "{x}"}, "remote-prefix: '{x}' is not a prefix"},
      {{"--remote-user", "me"}, "remote-user, remote-password-file and remote-tls-ca need remote"},
      {{"--remote", "a:1", "--remote-user", "me"}, "remote-user needs remote-password-file"},
      {{"--host-bits", "33"}, "bits of a value"},
      {{"--host-bits", "nan"}, "bits of a value"},
      {{"--host-bits", "2", "--disk-path", "/tmp/d", "--disk-bits", "4"},
       "disk-bits 4 is above host-bits 2"},
      {{"--no-such-flag"}, "there is no flag --no-such-flag: `kvstowd --help` lists them"},
      {{"--host-byts", "1"}, "there is no flag --host-byts: `kvstowd --help` lists them"},
      {{"--host-byts=1"}, "there is no flag --host-byts: `kvstowd --help` lists them"},
      {{"serve"}, "'serve' is no flag: `kvstowd --help` lists them"},
      {{"--config", "/no/such/file.conf"}, "/no/such/file.conf"},
      {{"--config", "/"}, "config: the file cannot be read"},
  };
  for (const auto& c : kCases) EXPECT_THAT(Error(c.args), HasSubstr(c.says));
  environment_ = {{"KVSTOW_HOST_BYTES", "many"}};
  EXPECT_THAT(Error({}), HasSubstr("host-bytes: 'many' is not a size"));
}

TEST_F(ConfigTest, AnUnknownKeyOfTheFileIsAnError) {
  const std::string file = File("# sizes\nhostbytes = \"1GiB\"\n");
  EXPECT_THAT(Error({"--config", file.c_str()}),
              HasSubstr(file + ", line 2: 'hostbytes = \"1GiB\"' is no setting"));
  EXPECT_THAT(Error({"--config", File("host-bytes 1GiB\n").c_str()}),
              HasSubstr("line 1: 'host-bytes 1GiB' is no setting: write NAME = \"VALUE\""));
}

TEST_F(ConfigTest, ADiskWithoutASizeGetsHalfOfItsFileSystem) {
  const std::string path = ::testing::TempDir() + "/not/there/yet";
  const Config c = Good({"--disk-path", path.c_str()});
  EXPECT_EQ(c.disk_bytes, std::filesystem::space(::testing::TempDir()).capacity / 2);
}

TEST(AddressTest, LoopbackIsKnown) {
  for (const char* text : {"127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/x"}) {
    EXPECT_TRUE(ParseAddress(text)->loopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "kv.example:1"}) {
    EXPECT_FALSE(ParseAddress(text)->loopback()) << text;
  }
}

}  // namespace
}  // namespace kvstow
