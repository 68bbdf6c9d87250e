// Load for benchmarks: pages of made-up values, clients on threads of their own, and a speed to
// compare with.
#ifndef KVSTOW_CLIENT_CLI_LOAD_H_
#define KVSTOW_CLIENT_CLI_LOAD_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow::cli {

// Makes a full page of finite F16 numbers about 1, as K and V are. Each seed gives another page.
std::vector<uint8_t> MakePage(const KvSpec& spec, uint32_t seed);

// Returns the GB/s at which one thread copies pages of this size, which are in no cache, into one
// buffer.
double MemcpyGbps(size_t page_bytes);

// Runs fn(client number) on a thread for each client. Returns the seconds until all were done.
double OnEveryClient(uint32_t clients, const std::function<void(uint32_t)>& fn);

// Returns the quantile p (0 to 1) of at least one value, in ascending order.
double Percentile(const std::vector<double>& sorted, double p);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_LOAD_H_
