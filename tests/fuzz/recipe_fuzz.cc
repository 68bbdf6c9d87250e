// Recipes from anywhere: what parses prints to what parses to the same, and makes a codec for every
// kind of space or is refused as a wrong argument; never a crash. Presets may write out to more
// than a recipe may have: then no codec is made.
#include <cstdlib>

#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/pages.h"

constexpr size_t kMostChars = 1024;  // of a recipe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recipe = ParseRecipe(text);
  if (!recipe.ok()) return 0;
  const bool too_long = recipe->pipeline().size() > kMostChars;
  for (const std::string& printed : {recipe->pipeline(), recipe->text()}) {
    if (printed.size() > kMostChars) continue;
    const auto again = ParseRecipe(printed);
    if (!again.ok() || *again != *recipe) std::abort();
  }
  const KvSpec specs[] = {testing::SpecOf(DType::kF16, 3, 2, 64, 64, 16),
                          testing::SpecOf(DType::kBF16, 1, 1, 576, 0, 4096),
                          testing::SpecOf(DType::kF8E4M3, 1024, 1, 7, 1, 1)};
  for (const KvSpec& spec : specs) {
    const absl::Status status = MakeCodec(*recipe, spec).status();
    if (too_long && status.ok()) std::abort();
    if (!status.ok() && !absl::IsInvalidArgument(status) && !absl::IsFailedPrecondition(status))
      std::abort();
  }
  return 0;
}
