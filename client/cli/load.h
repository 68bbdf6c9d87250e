// Load for benchmarks: pages of made-up values, clients on threads of their own, and what to set
// speeds beside.
#ifndef KVSTOW_CLIENT_CLI_LOAD_H_
#define KVSTOW_CLIENT_CLI_LOAD_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow::cli {

// A full page of finite F16 numbers about 1, as K and V are; another for each seed.
std::vector<uint8_t> MakePage(const KvSpec& spec, uint32_t seed);

// What one thread copies, in GB/s: pages of this size that are in no cache, into one buffer.
double MemcpyGbps(size_t page_bytes);

// Runs fn(client number) on a thread for each client; the seconds until all were done.
double OnEveryClient(uint32_t clients, const std::function<void(uint32_t)>& fn);

// The p-th part (0 to 1) of at least one value, ascending.
double Percentile(const std::vector<double>& sorted, double p);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_LOAD_H_
