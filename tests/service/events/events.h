// A router of KV events: it decodes batches and keeps the hashes of what is stored.
#ifndef KVSTOW_TESTS_SERVICE_EVENTS_EVENTS_H_
#define KVSTOW_TESTS_SERVICE_EVENTS_EVENTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/store/residency/store_observer.h"

namespace kvstow::testing {

// A page that a test's store has: its key ends in the hash.
inline std::string KeyOf(uint64_t hash) {
  std::string key = "prefix--";
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(hash >> shift));
  return key;
}

struct Router {
  // By topic: how often each hash is stored.
  std::map<std::string, std::map<uint64_t, int>> stored;
  uint64_t cleared = 0, events = 0;
  bool from_start = true;            // else it hears of blocks that go before they came
  std::vector<nlohmann::json> last;  // events of the last batch

  void Take(const std::string& topic, absl::string_view payload) {
    const auto batch = nlohmann::json::from_msgpack(payload.begin(), payload.end());
    ASSERT_EQ(batch.size(), 3u);
    last.assign(batch[1].begin(), batch[1].end());
    for (const nlohmann::json& event : last) {
      ++events;
      if (event["type"] == "AllBlocksCleared") {
        stored.clear();
        ++cleared;
        continue;
      }
      EXPECT_EQ(event["medium"], "STORAGE");
      const int change = event["type"] == "BlockStored" ? 1 : -1;
      for (const uint64_t hash : event["block_hashes"]) {
        int& count = stored[topic][hash];
        count += change;
        EXPECT_TRUE(count >= 0 || !from_start) << "removed before it was stored: " << hash;
        if (count == 0) stored[topic].erase(hash);
      }
    }
  }
  std::set<uint64_t> Of(const std::string& topic) const {
    std::set<uint64_t> hashes;
    const auto found = stored.find(topic);
    if (found == stored.end()) return hashes;
    for (const auto& [hash, count] : found->second) {
      EXPECT_EQ(count, 1) << "stored twice: " << hash;
      hashes.insert(hash);
    }
    return hashes;
  }
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_EVENTS_EVENTS_H_
