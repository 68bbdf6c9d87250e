// Self-describing pages: every byte is a function of key, version, segment and place, so that wrong
// bytes can be told apart from lost ones, and it can be said whose they are.
#ifndef KVSTOW_TESTS_STORAGE_PRF_PAGE_H_
#define KVSTOW_TESTS_STORAGE_PRF_PAGE_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

// As Lookup takes keys.
inline std::vector<absl::string_view> Views(const std::vector<std::string>& keys) {
  return {keys.begin(), keys.end()};
}

struct PrfPage {
  uint64_t key = 0;
  uint64_t version = 1;
  std::vector<uint32_t> sizes = {1000, 1000, 1000};  // of the segments, each at least 24
  bool whole = false;
  SpaceId space = 1;
  bool hot = false;
  uint64_t parent = 0;            // key of the page before it; 0 = none is told
  std::vector<float> gains = {};  // of the segments; by default each removes less than the last

  PageName name() const { return {.space = space, .key = absl::StrCat("key-", key)}; }

  std::vector<uint8_t> Body(size_t segment) const {
    std::vector<uint8_t> out(sizes[segment]);
    const uint64_t stamp[3] = {key, version, segment};
    std::memcpy(out.data(), stamp, sizeof(stamp));
    uint64_t x = (key * 0x9E3779B97F4A7C15 + version) * 0xBF58476D1CE4E5B9 + segment + 1;
    for (size_t at = sizeof(stamp); at < out.size(); at += sizeof(x)) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      std::memcpy(out.data() + at, &x, std::min(sizeof(x), out.size() - at));
    }
    return out;
  }

  // "" when these are the bytes of this page's segment, else whose they are.
  std::string WhatIs(size_t segment, std::span<const uint8_t> bytes) const {
    const std::vector<uint8_t> want = Body(segment);
    if (bytes.size() == want.size() && std::memcmp(bytes.data(), want.data(), want.size()) == 0) {
      return "";
    }
    uint64_t stamp[3] = {};
    std::memcpy(stamp, bytes.data(), std::min(bytes.size(), sizeof(stamp)));
    return absl::StrCat(bytes.size(), " bytes stamped key ", stamp[0], " version ", stamp[1],
                        " segment ", stamp[2], ", wanted ", want.size(), " of key ", key,
                        " version ", version, " segment ", segment);
  }

  Digest128 raw_digest() const {
    const uint64_t stamp[2] = {key, version};
    return Xxh3_128({reinterpret_cast<const uint8_t*>(stamp), sizeof(stamp)});
  }

  PageToStore ToStore(Ack ack = Ack::kMemory) const {
    PageToStore page{.name = name(),
                     .header = SharedBytes::Take(absl::StrCat("header of ", key, "@", version)),
                     .raw_digest = raw_digest(),
                     .raw_bytes = 10000,
                     .first_position = key * 16,
                     .tokens = 16,
                     .parent_key = parent == 0 ? "" : absl::StrCat("key-", parent),
                     .whole = whole,
                     .hot = hot,
                     .ack = ack};
    for (size_t i = 0; i < sizes.size(); ++i) {
      SharedBytes body = SharedBytes::Take(Body(i));
      page.facts.push_back({.bytes = sizes[i],
                            .gain = gains.empty() ? 1.0f / static_cast<float>(i + 1) : gains[i],
                            .digest = Xxh3(body.span())});
      page.bodies.push_back(std::move(body));
    }
    return page;
  }
  // The same as what takes the place of another page.
  ColdForm ToColdForm() const {
    PageToStore page = ToStore();
    return {.header = page.header,
            .whole = page.whole,
            .facts = std::move(page.facts),
            .bodies = std::move(page.bodies)};
  }
  uint64_t stored_bytes() const {
    uint64_t bytes = absl::StrCat("header of ", key, "@", version).size();
    for (const uint32_t size : sizes) bytes += size;
    return bytes;
  }
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_PRF_PAGE_H_
