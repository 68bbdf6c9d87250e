#include "client/cli/bench/load.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "client/cli/text.h"

namespace kvstow::cli {

std::vector<uint8_t> MakePage(const KvSpec& spec, uint32_t seed) {
  std::vector<uint8_t> page(PageBytes(spec, spec.page_tokens));
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i + 1 < page.size(); i += 2) {
    state = state * 1664525u + 1013904223u;
    page[i] = static_cast<uint8_t>(state >> 24);
    page[i + 1] = static_cast<uint8_t>(0x38 | (state >> 16 & 0x83));
  }
  return page;
}

double MemcpyGbps(size_t page_bytes) {
  constexpr size_t kColdBytes = size_t{256} << 20;  // more than any cache keeps
  const std::vector<uint8_t> from(std::max(kColdBytes, page_bytes), 1);
  std::vector<uint8_t> to(page_bytes);
  uint64_t copied = 0;
  const Time start = Clock::Real().Now();
  while (SecondsSince(start) < 0.2) {
    for (size_t at = 0; at + page_bytes <= from.size(); at += page_bytes) {
      std::memcpy(to.data(), from.data() + at, page_bytes);
      copied += page_bytes;
    }
  }
  return GigabytesPerSecond(copied, SecondsSince(start));
}

double OnEveryClient(uint32_t clients, const std::function<void(uint32_t)>& fn) {
  const Time start = Clock::Real().Now();
  std::vector<std::thread> threads;
  for (uint32_t c = 0; c < clients; ++c) threads.emplace_back(fn, c);
  for (std::thread& t : threads) t.join();
  return SecondsSince(start);
}

double Percentile(const std::vector<double>& sorted, double p) {
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(p * static_cast<double>(sorted.size())))];
}

}  // namespace kvstow::cli
