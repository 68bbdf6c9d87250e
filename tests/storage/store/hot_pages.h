// Pages of many shapes by key and version, every third of them hot, with their cold forms: for
// tests that do everything at random.
#ifndef KVSTOW_TESTS_STORAGE_STORE_HOT_PAGES_H_
#define KVSTOW_TESTS_STORAGE_STORE_HOT_PAGES_H_

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "storage/store/tiered_store.h"
#include "tests/storage/prf_page.h"

namespace kvstow {

struct HotPages {
  uint32_t least, step, cold;  // bytes of a segment: from `least` in steps; of a cold form's

  PrfPage Page(uint64_t key, uint64_t version) const {
    PrfPage page{
        .key = key, .version = version, .sizes = {}, .whole = key % 5 == 0, .hot = key % 3 == 0};
    for (uint64_t i = 0; i < 1 + key % 4; ++i) page.sizes.push_back(least + step * ((key + i) % 7));
    return page;
  }
  PrfPage Cold(uint64_t key, uint64_t version) const {
    PrfPage page = Page(key, version + 1000);
    page.sizes = std::vector<uint32_t>(1 + key % 2, cold);
    page.hot = false;
    return page;
  }
  // The form of the page that has this header.
  PrfPage Form(uint64_t key, uint64_t version, const SharedBytes& header) const {
    const PrfPage page = Cold(key, version);
    return AsString(header.span()) == AsString(page.ToStore().header.span()) ? page
                                                                             : Page(key, version);
  }
  // Every ninth page has none.
  MakeColdForm ColdForms() const {
    return [*this](const PageName& name, const SharedBytes& header,
                   std::span<const SharedBytes>) -> std::optional<ColdForm> {
      const std::string text(AsString(header.span()));
      const uint64_t key = std::stoull(name.key.substr(4));
      if (key % 9 == 0) return std::nullopt;
      return Cold(key, std::stoull(text.substr(text.find('@') + 1))).ToColdForm();
    };
  }
  // The same, several pages of all spaces below 100 at a time.
  kvstow::ColdForms Batches(size_t most_pages) const {
    const auto make = [one = ColdForms()](std::span<const HotForm> pages) {
      std::vector<std::optional<ColdForm>> out;
      for (const HotForm& page : pages) out.push_back(one(page.name, page.header, page.bodies));
      return out;
    };
    std::vector<SpaceId> all(100);
    std::iota(all.begin(), all.end(), SpaceId{0});
    return {.make = make, .together = [all](SpaceId) { return all; }, .most_pages = most_pages};
  }
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_STORE_HOT_PAGES_H_
