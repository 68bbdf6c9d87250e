#include "kernels/recipe.h"

namespace kvstow {
namespace {

constexpr Preset kPresets[] = {
    {"raw", "raw", "the very bytes that were put; 16 bits a value", "", ""},
    {"int8", "affine(bits=8,group=64)", "8.5 bits a value, near lossless: the hot form", "", ""},
    {"int8-tensor", "affine(bits=8,k=tensor,v=tensor)", "one scale for K and one for V of a layer",
     "", ""},
    {"int8-token", "affine(bits=8,group=1024,k=token,v=token)", "one scale a head vector", "", ""},
    {"int8-channel", "affine(bits=8,group=64,k=channel,v=channel)",
     "one scale a channel and 64 tokens", "", ""},
    {"int4", "affine(bits=4,group=64)", "4.5 bits a value, the plain baseline", "", ""},
    {"int4-tensor", "affine(bits=4,k=tensor,v=tensor)",
     "one scale for K and one for V of a layer: the crudest", "", ""},
    {"int4-token", "affine(bits=4,group=1024,k=token,v=token)", "one scale a head vector", "", ""},
    {"int4-channel", "affine(bits=4,group=64,k=channel,v=channel)",
     "one scale a channel and 64 tokens", "", ""},
    {"q8_0", "block(format=q8_0)", "8.5 bits a value: blocks of 32 as llama.cpp stores them",
     "llama.cpp", ""},
    {"q4_0", "block(format=q4_0)", "4.5 bits a value: blocks of 32 as llama.cpp stores them",
     "llama.cpp", ""},
    {"fp8", "minifloat(format=e4m3)",
     "8-bit floats with a scale a head vector; 8.25 bits at 64 channels", "OCP OFP8", ""},
    {"nvfp4", "block(format=nvfp4)", "4-bit floats, a scale for 16 channels; 4.5 bits a value",
     "NVIDIA NVFP4", ""},
    {"mxfp4", "block(format=mxfp4)",
     "4-bit floats, a power of two for 32 channels; 4.25 bits a value", "OCP MX 1.0", ""},
    {"mxfp8", "block(format=mxfp8)",
     "8-bit floats, a power of two for 32 channels; 8.25 bits a value", "OCP MX 1.0", ""},
    {"kivi2", "affine(bits=2,group=32,k=channel,v=token)",
     "as kivi4 with 2-bit codes; 3 bits a value", "KIVI, arXiv 2402.02750", ""},
    {"kivi4", "affine(bits=4,group=32,k=channel,v=token)",
     "K by channel over 32 tokens, V by token; 5 bits a value, good where K has large channels",
     "KIVI, arXiv 2402.02750", ""},
    {"sageattention", "mean(part=k)|affine(bits=8,group=64)",
     "int8 of K less its channel means: for K with large means", "SageAttention, arXiv 2410.02367",
     ""},
    {"quarot", "hadamard|affine(bits=4,group=128)",
     "int4 of rotated vectors; 4.25 bits of 128 channels", "QuaRot, arXiv 2404.00456", ""},
    {"turboquant2", "hadamard|codebook(bits=2,norm=plain)",
     "rotated directions by codebook and a length each; 2.25 bits at 64 channels",
     "TurboQuant, arXiv 2504.19874", ""},
    {"turboquant3", "hadamard|codebook(bits=3,norm=plain)", "as turboquant2 with 3-bit codes; 3.25",
     "TurboQuant, arXiv 2504.19874", ""},
    {"turboquant4", "hadamard|codebook(bits=4,norm=plain)", "as turboquant2 with 4-bit codes; 4.25",
     "TurboQuant, arXiv 2504.19874", ""},
    {"turboquant3-prod", "hadamard|sketch(bits=3)",
     "2-bit codes and the signs of a sketch of the rest: unbiased, but not closer",
     "TurboQuant, arXiv 2504.19874", ""},
    {"turboquant4-prod", "hadamard|sketch(bits=4)", "as turboquant3-prod with 3-bit codes",
     "TurboQuant, arXiv 2504.19874", ""},
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
