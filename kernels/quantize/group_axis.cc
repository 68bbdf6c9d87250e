#include "kernels/quantize/group_axis.h"

#include <algorithm>

#include "base/status_macros.h"

namespace kvstow {

GroupLayout GroupAxes::LayoutOf(const SlabShape& shape) const {
  switch (shape.part == Part::kK ? k : v) {
    case GroupAxis::kChannel:
      return {false, shape.tokens, size_t{shape.heads} * shape.dim, std::min(group, shape.tokens)};
    case GroupAxis::kTensor:
      return {true, 1, shape.values(), shape.values()};
    case GroupAxis::kToken:
      break;
  }
  return {true, shape.vectors(), shape.dim, std::min(group, shape.dim)};
}

BodyPart GroupAxes::PartOf(const SlabShape& shape, uint64_t bits) const {
  const GroupLayout layout = LayoutOf(shape);
  switch (shape.part == Part::kK ? k : v) {
    case GroupAxis::kChannel:
      return {bits * layout.width, group};
    case GroupAxis::kTensor:
      return {bits, kAllTokens};
    case GroupAxis::kToken:
      break;
  }
  return {bits * layout.groups() / shape.tokens, 1};
}

uint32_t GroupAxes::TileTokens(const SlabShape& shape) const {
  const GroupAxis axis = shape.part == Part::kK ? k : v;
  if (axis == GroupAxis::kTensor) return shape.tokens;
  return axis == GroupAxis::kChannel ? std::min(group, shape.tokens) : 1;
}

size_t GroupAxes::GroupsBefore(const SlabTile& tile) const {
  if (tile.first_token == 0) return 0;
  return LayoutOf({tile.slab.part, tile.first_token, tile.slab.heads, tile.slab.dim}).groups();
}

absl::StatusOr<GroupAxes> ReadGroupAxes(const OpArguments& arguments) {
  GroupAxes axes;
  KVSTOW_ASSIGN_OR_RETURN(axes.group, arguments.Number("group", axes.group, 1, kMaxPageTokens));
  KVSTOW_ASSIGN_OR_RETURN(const size_t k, arguments.Word("k", {"token", "channel", "tensor"}));
  KVSTOW_ASSIGN_OR_RETURN(const size_t v, arguments.Word("v", {"token", "channel", "tensor"}));
  axes.k = static_cast<GroupAxis>(k);
  axes.v = static_cast<GroupAxis>(v);
  return axes;
}

}  // namespace kvstow
