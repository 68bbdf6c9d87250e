// The values of kvstow/types.py as the client has them, and back.
//
// Functions throw nanobind::value_error, which names the field that is wrong. The caller holds the
// GIL.
#ifndef KVSTOW_CLIENT_PYTHON_NATIVE_SPECS_H_
#define KVSTOW_CLIENT_PYTHON_NATIVE_SPECS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "client/pages.h"
#include "client/spaces.h"
#include "kernels/page/page.h"

namespace kvstow::python {

KvSpec SpecOf(nanobind::handle spec);         // a kvstow.KvSpec
nanobind::dict SpecDict(const KvSpec& spec);  // the arguments of kvstow.KvSpec; rope is a dict
// The bytes live as long as the object.
std::span<const uint8_t> BytesOf(const nanobind::bytes& bytes);
// Returns the blob of kvstow.model_statistics. Arguments are float32 values, as bytes; `queries`
// has those of some layers.
nanobind::bytes StatisticsBlob(const KvSpec& spec,
                               const std::map<uint32_t, nanobind::bytes>& queries,
                               const nanobind::bytes& metric_k, const nanobind::bytes& gain_k,
                               const nanobind::bytes& metric_v, const nanobind::bytes& gain_v,
                               const nanobind::bytes& slope_k, const nanobind::bytes& slope_v,
                               const nanobind::bytes& entropy);
// Returns the blob of kvstow.rank_statistics.
nanobind::bytes RankStatisticsBlob(const nanobind::bytes& statistics, const KvSpec& spec,
                                   uint32_t first_layer, uint32_t tensor_rank,
                                   uint32_t tensor_size);
// Returns the calibration, whose errors cost `factor` times as much, to this power
// (WithScaledCosts).
nanobind::bytes ScaledCostsBlob(const nanobind::bytes& calibration, double factor, double power);
// Returns the recipe with a divergence in the place of its step (WithTarget).
std::string RecipeWithDivergence(const std::string& recipe, double divergence);
nanobind::dict SpaceDict(const SpaceInfo& space);
Payload PayloadOf(const std::string& name);    // "raw", "encoded", "auto"
Fidelity FidelityOf(const std::string& name);  // "", "exact", "dense", "sparse"
AckLevel AckOf(const std::string& name);       // "default", "memory", "process", "durable"
PageColumn ColumnOf(nanobind::handle column);  // a kvstow.Column

}  // namespace kvstow::python

#endif  // KVSTOW_CLIENT_PYTHON_NATIVE_SPECS_H_
