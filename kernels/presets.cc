#include "kernels/recipe.h"

namespace kvstow {
namespace {

constexpr Preset kPresets[] = {
    {"raw", "raw", "the very bytes that were put", "", ""},
    {"int8", "affine(bits=8,group=64)", "8.5 bits a value, near lossless: the hot form", "", ""},
};

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

}  // namespace kvstow
