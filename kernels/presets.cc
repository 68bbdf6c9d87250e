#include "kernels/recipe.h"

namespace kvstow {
namespace {

constexpr Preset kPresets[] = {
    {"raw", "raw", "the very bytes that were put; 16 bits a value", "", ""},
    {"int8", "affine(bits=8,group=64)", "8.5 bits a value, near lossless: the hot form", "", ""},
    {"fp8", "minifloat(format=e4m3)",
     "8-bit floats with a scale a head vector; 8.25 bits at 64 channels", "OCP OFP8", ""},
    {"kivi4", "affine(bits=4,group=32,k=channel,v=token)",
     "K by channel over 32 tokens, V by token; 5 bits a value, good where K has large channels",
     "KIVI, arXiv 2402.02750", ""},
    {"rotated8", "hadamard|levels(2,2,4)",
     "embedded: 2, 4 or 8 bits a value of rotated vectors, one scale each", "", ""},
    {"kvstow", "planes(step=0.51,levels=3,k=1.1,depth=2.5)",
     "embedded and entropy coded by statistics of the page, no calibration; about 2.5 bits a value",
     "", ""},
    {"kvstow-cal", "joint(run=1,step=2,levels=4,stream=64,blob=any)",
     "K and V of a run of layers through one calibrated transform, embedded: 12 to 60 x", "",
     "calibration"},
};

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

}  // namespace kvstow
