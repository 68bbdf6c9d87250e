#include "base/shared_bytes.h"

#include <cstring>
#include <utility>

namespace kvstow {
namespace {

template <typename Container>
SharedBytes Own(Container bytes) {
  auto owner = std::make_shared<const Container>(std::move(bytes));
  const std::span<const uint8_t> view(reinterpret_cast<const uint8_t*>(owner->data()),
                                      owner->size());
  return {std::move(owner), view};
}

}  // namespace

SharedBytes SharedBytes::CopyOf(std::span<const uint8_t> bytes) {
  ByteBlock block(bytes.size());
  if (!bytes.empty()) std::memcpy(block.data(), bytes.data(), bytes.size());
  return std::move(block).Share();
}

SharedBytes SharedBytes::Take(std::string bytes) { return Own(std::move(bytes)); }
SharedBytes SharedBytes::Take(std::vector<uint8_t> bytes) { return Own(std::move(bytes)); }

}  // namespace kvstow
