// Random mean queries (calibration/query_means.h), for the pages of correlated_pages.h.
#ifndef KVSTOW_TESTS_KERNELS_RANDOM_QUERY_MEANS_H_
#define KVSTOW_TESTS_KERNELS_RANDOM_QUERY_MEANS_H_

#include <string>
#include <vector>

#include "kernels/calibration/query_means.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

// `heads` are of queries.
inline QueryMeans RandomMeans(const KvSpec& spec, const std::vector<uint32_t>& layers,
                              uint32_t heads) {
  QueryMeans out;
  out.heads = heads;
  for (const uint32_t layer : layers) {
    Gaussian gaussian(50 + layer);
    QueryMeans::Layer& of = out.layers.emplace_back(QueryMeans::Layer{.layer = layer});
    for (size_t i = 0; i < size_t{heads} * spec.head_dim_k; ++i) {
      of.means.push_back(0.3f * gaussian());
    }
  }
  return out;
}

// A calibration blob with the queries.
inline std::string WithMeans(const KvSpec& spec, absl::string_view blob, const QueryMeans& means) {
  return *WithSection(AsBytes(blob), *QueryMeansSection(ShapeFor(spec, 1), means));
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_RANDOM_QUERY_MEANS_H_
