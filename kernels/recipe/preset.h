// A preset: a pipeline that has a name.
#ifndef KVSTOW_KERNELS_RECIPE_PRESET_H_
#define KVSTOW_KERNELS_RECIPE_PRESET_H_

#include "absl/strings/string_view.h"

namespace kvstow {

// One row of the table of presets. Names never change. A released pipeline does not change.
struct Preset {
  absl::string_view name;
  absl::string_view pipeline;
  absl::string_view summary;  // one line for `kvstow codec list`
  absl::string_view source;   // paper or format, "" for our own
  absl::string_view needs;    // "", "calibration", "attention"
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_RECIPE_PRESET_H_
