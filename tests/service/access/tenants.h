// A server with identities: tenants `a`, `b` and `c`, each with a worker and a reader, and an
// operator. Space "docs" of `a` is shared with `b` for reading, "pool" for writing too.
#ifndef KVSTOW_TESTS_SERVICE_ACCESS_TENANTS_H_
#define KVSTOW_TESTS_SERVICE_ACCESS_TENANTS_H_

#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "base/digest.h"
#include "tests/service/server_fixture.h"

namespace kvstow::testing {

using Json = nlohmann::json;

inline std::string TokenHash(const std::string& token) { return HexOf(Sha256(AsBytes(token))); }

// People are named as "a.worker"; so are their tokens.
inline Json AccessJson() {
  Json out = {{"tenants", Json::object()}, {"identities", Json::array()}};
  const auto add = [&](const std::string& name, const std::string& tenant, const char* role) {
    Json identity = {{"token_sha256", TokenHash(name)}, {"name", name}, {"role", role}};
    if (!tenant.empty()) identity["tenant"] = tenant;
    out["identities"].push_back(identity);
  };
  for (const std::string tenant : {"a", "b", "c"}) {
    out["tenants"][tenant] = Json::object();
    add(tenant + ".worker", tenant, "worker");
    add(tenant + ".reader", tenant, "reader");
  }
  add("operator", "", "admin");
  out["shared_spaces"] = {{{"space", "docs"}, {"tenant", "a"}, {"with", {"b"}}},
                          {{"space", "pool"}, {"tenant", "a"}, {"with", {"b"}}, {"write", true}}};
  return out;
}

class TenantsTest : public ServerTest {
 protected:
  TenantsTest() { config_.access = (folder_ / "access.json").string(); }
  ~TenantsTest() override { people_.clear(); }

  void StartServer() {
    WriteAccess();
    ServerTest::StartServer();
  }
  // Atomically, as an operator should.
  void WriteAccess() const {
    const std::string fresh = config_.access + ".new";
    std::ofstream(fresh) << access_.dump();
    ASSERT_EQ(rename(fresh.c_str(), config_.access.c_str()), 0);
  }
  void StopServer() {
    people_.clear();
    ServerTest::StopServer();
  }
  // Takes a person's line out of the file.
  void Remove(const std::string& name) {
    Json kept = Json::array();
    for (const Json& identity : access_["identities"]) {
      if (identity.value("name", "") != name) kept.push_back(identity);
    }
    access_["identities"] = kept;
  }
  WireClient& As(const std::string& name) {
    std::unique_ptr<WireClient>& person = people_[name];
    if (person == nullptr) person = std::make_unique<WireClient>(server_->address(), name);
    return *person;
  }
  PageIn Page(const std::string& key, uint32_t seed) const {
    return {.key = key, .raw = RandomPage(SmallSpec(), 64, seed), .tokens = 64};
  }
  double Refused(const std::string& reason) const {
    return Metric("kvstow_access_refused_total{reason=\"" + reason + "\"}");
  }

  Json access_ = AccessJson();
  std::map<std::string, std::unique_ptr<WireClient>> people_;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_ACCESS_TENANTS_H_
