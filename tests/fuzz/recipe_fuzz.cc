// Recipes from anywhere: what parses prints to what parses to the same, and makes a codec for every
// kind of space or is refused as a wrong argument; never a crash.
#include <cstdlib>

#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/pages.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recipe = ParseRecipe(text);
  if (!recipe.ok()) return 0;
  for (const std::string& printed : {recipe->pipeline(), recipe->text()}) {
    const auto again = ParseRecipe(printed);
    if (!again.ok() || *again != *recipe) std::abort();
  }
  const KvSpec specs[] = {testing::SpecOf(DType::kF16, 3, 2, 64, 64, 16),
                          testing::SpecOf(DType::kBF16, 1, 1, 576, 0, 4096),
                          testing::SpecOf(DType::kF8E4M3, 1024, 1, 7, 1, 1)};
  for (const KvSpec& spec : specs) {
    const absl::Status status = MakeCodec(*recipe, spec).status();
    if (!status.ok() && !absl::IsInvalidArgument(status) && !absl::IsFailedPrecondition(status))
      std::abort();
  }
  return 0;
}
