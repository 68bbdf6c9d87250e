// Gets and puts whose pages come in parts, as tests look at them.
#ifndef KVSTOW_TESTS_CLIENT_BATCH_LAYERS_H_
#define KVSTOW_TESTS_CLIENT_BATCH_LAYERS_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "tests/client/prompt.h"

namespace kvstow {

// The results of a Get by layers, and of each of its runs: the layers that were named, the pages'
// results, and the bytes of their buffers.
struct LayerGot {
  struct Run {
    LayerRange layers;
    std::vector<PageOutcome> outcomes;
    std::vector<std::vector<uint8_t>> bytes;  // of each page: that run
  };
  std::vector<Run> runs;
  std::vector<GetResult> results;
};

inline LayerGot GetLayers(Client& client, const SpaceInfo& space, const std::vector<PageGet>& gets,
                          uint32_t layers_per_run) {
  LayerGot got;
  std::promise<void> done;
  client.GetLayersAsync(
      space, 0, gets, layers_per_run,
      [&](LayerRange layers, std::span<const GetResult> so_far) {
        LayerGot::Run run{.layers = layers};
        for (size_t p = 0; p < gets.size(); ++p) {
          const size_t layer = gets[p].out.size() / space.spec.layers;
          const auto part = gets[p].out.subspan(layers.first * layer, layers.count * layer);
          run.outcomes.push_back(so_far[p].outcome);
          run.bytes.emplace_back(part.begin(), part.end());
        }
        got.runs.push_back(std::move(run));
      },
      [&](std::vector<GetResult> results) {
        got.results = std::move(results);
        done.set_value();
      });
  done.get_future().wait();
  return got;
}

inline std::vector<std::pair<uint32_t, uint32_t>> LayersOf(const LayerGot& got) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (const LayerGot::Run& run : got.runs) out.emplace_back(run.layers.first, run.layers.count);
  return out;
}

// The results of a progressive Get: first, and at last.
struct ProgressiveGot {
  std::vector<GetResult> base, results;
  std::vector<std::vector<uint8_t>> base_bytes;  // of each page's buffer
};

// `at_base`: run in the callback, before the rest is asked for.
inline ProgressiveGot GetProgressive(
    Client& client, const std::string& space, const std::vector<PageGet>& gets,
    const std::function<void()>& at_base = [] {}) {
  ProgressiveGot got;
  std::promise<void> done;
  client.GetProgressiveAsync(
      space, 0, gets,
      [&](std::span<const GetResult> base) {
        got.base.assign(base.begin(), base.end());
        for (const PageGet& get : gets) got.base_bytes.emplace_back(get.out.begin(), get.out.end());
        at_base();
      },
      [&](std::vector<GetResult> results) {
        got.results = std::move(results);
        done.set_value();
      });
  done.get_future().wait();
  return got;
}

// Pages of a prompt that are computed layer by layer, and their put.
struct Filling {
  const Prompt& prompt;
  std::vector<std::vector<uint8_t>> buffers;
  std::vector<PagePut> puts;
  std::promise<std::vector<PutResult>> results;
  std::vector<size_t> filled;  // bytes of each page

  explicit Filling(const Prompt& p) : prompt(p), puts(p.Puts()), filled(p.pages.size()) {
    for (const auto& page : p.pages) buffers.emplace_back(page.size(), 0xee);
    for (size_t i = 0; i < puts.size(); ++i) puts[i].raw = buffers[i];
  }
  Client::PutDone Done() {
    return [this](std::vector<PutResult> r) { results.set_value(std::move(r)); };
  }
  // Fills what these leading layers lack, and says so. Bytes that may be on their way stay.
  void Fill(LayerPut& put, uint32_t layers) {
    for (size_t p = 0; p < buffers.size(); ++p) {
      const size_t end = buffers[p].size() / prompt.spec.layers * layers;
      std::copy(prompt.pages[p].begin() + static_cast<std::ptrdiff_t>(filled[p]),
                prompt.pages[p].begin() + static_cast<std::ptrdiff_t>(end),
                buffers[p].begin() + static_cast<std::ptrdiff_t>(filled[p]));
      filled[p] = end;
    }
    put.Filled(layers);
  }
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CLIENT_BATCH_LAYERS_H_
