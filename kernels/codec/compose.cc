#include "kernels/codec/compose.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/ops.h"
#include "kernels/quantize/combine.h"
#include "kernels/quantize/split.h"

namespace kvstow {
namespace {

// Reads ops one after another; every method takes what the grammar names.
class Composer {
 public:
  explicit Composer(std::span<const Op> ops) : rest_(ops) {}

  absl::StatusOr<SlabOps> Slabs() {
    KVSTOW_ASSIGN_OR_RETURN(const bool by_part, Take("k"));
    SlabOps out;
    if (by_part) {
      KVSTOW_ASSIGN_OR_RETURN(auto k, Chain());
      KVSTOW_RETURN_IF_ERROR(Expect("v"));
      KVSTOW_ASSIGN_OR_RETURN(auto v, Chain());
      out.quantizer = MakeParts(std::move(k), std::move(v));
    } else {
      KVSTOW_ASSIGN_OR_RETURN(out, Stage());
      KVSTOW_ASSIGN_OR_RETURN(const bool has_residual, Take("residual"));
      if (has_residual) {
        KVSTOW_ASSIGN_OR_RETURN(out.quantizer, Residuals(Whole(std::move(out))));
        out.transforms.clear();
      }
    }
    if (!rest_.empty()) return Wrong(absl::StrCat("nothing may follow '", last_, "'"));
    const auto keeps = [](const auto& t) { return t->preserves_error(); };
    if (!std::all_of(out.transforms.begin(), out.transforms.end(), keeps)) {
      out.quantizer = Whole(std::move(out));
      out.transforms.clear();
    }
    return out;
  }

 private:
  static std::unique_ptr<Quantizer> Whole(SlabOps ops) {
    return MakeChain(std::move(ops.transforms), std::move(ops.quantizer));
  }

  absl::StatusOr<std::unique_ptr<Quantizer>> Chain() {
    KVSTOW_ASSIGN_OR_RETURN(auto first, WholeStage());
    KVSTOW_ASSIGN_OR_RETURN(const bool has_residual, Take("residual"));
    if (!has_residual) return first;
    return Residuals(std::move(first));
  }

  // The stages behind a `residual`, and those behind further ones.
  absl::StatusOr<std::unique_ptr<Quantizer>> Residuals(std::unique_ptr<Quantizer> first) {
    for (bool more = true; more;) {
      KVSTOW_ASSIGN_OR_RETURN(auto second, WholeStage());
      first = MakeResidual(std::move(first), std::move(second));
      KVSTOW_ASSIGN_OR_RETURN(more, Take("residual"));
    }
    return first;
  }

  absl::StatusOr<std::unique_ptr<Quantizer>> WholeStage() {
    KVSTOW_ASSIGN_OR_RETURN(SlabOps stage, Stage());
    return Whole(std::move(stage));
  }

  absl::StatusOr<SlabOps> Stage() {
    SlabOps out;
    for (;;) {
      if (rest_.empty()) return Wrong("it must end in 'raw' or in a quantizer");
      const Op& op = rest_.front();
      const OpInfo* info = FindOp(op.name);
      if (info == nullptr) {
        return Wrong(absl::StrCat("there is no op or preset '", op.name,
                                  "': `kvstow codec list` shows what there is"));
      }
      const OpArguments arguments(op);
      switch (info->kind) {
        case OpKind::kTransform: {
          KVSTOW_ASSIGN_OR_RETURN(auto made, info->make_transform(arguments));
          out.transforms.push_back(std::move(made));
          Advance();
          break;
        }
        case OpKind::kQuantize: {
          KVSTOW_ASSIGN_OR_RETURN(out.quantizer, info->make_quantizer(arguments));
          Advance();
          return out;
        }
        case OpKind::kSplit: {
          Advance();
          KVSTOW_ASSIGN_OR_RETURN(auto first, WholeStage());
          KVSTOW_RETURN_IF_ERROR(Expect("rest"));
          KVSTOW_ASSIGN_OR_RETURN(auto rest, WholeStage());
          KVSTOW_ASSIGN_OR_RETURN(out.quantizer,
                                  info->make_split(arguments, {std::move(first), std::move(rest)}));
          return out;
        }
        case OpKind::kWrap: {
          Advance();
          KVSTOW_ASSIGN_OR_RETURN(auto inner, WholeStage());
          KVSTOW_ASSIGN_OR_RETURN(out.quantizer, info->make_wrap(arguments, std::move(inner)));
          return out;
        }
        case OpKind::kRun:
        case OpKind::kRope:
          return Wrong(absl::StrCat("'", op.name, "' must stand first"));
        case OpKind::kMark:
          return Wrong(absl::StrCat("'", op.name, "' has no place here"));
        case OpKind::kRaw:
        case OpKind::kCalibrated:
        case OpKind::kRunCodec:
          return Wrong(absl::StrCat("'", op.name, "' takes no transform"));
      }
    }
  }

  void Advance() {
    last_ = rest_.front().name;
    rest_ = rest_.subspan(1);
  }

  // Moves past the marker when it stands here.
  absl::StatusOr<bool> Take(absl::string_view marker) {
    if (rest_.empty() || rest_.front().name != marker) return false;
    KVSTOW_RETURN_IF_ERROR(OpArguments(rest_.front()).Only({}));
    Advance();
    return true;
  }

  absl::Status Expect(absl::string_view marker) {
    KVSTOW_ASSIGN_OR_RETURN(const bool taken, Take(marker));
    if (taken) return absl::OkStatus();
    return Wrong(absl::StrCat("'", marker, "' must follow '", last_, "'"));
  }

  static absl::Status Wrong(absl::string_view why) { return absl::InvalidArgumentError(why); }

  std::span<const Op> rest_;
  std::string last_;
};

}  // namespace

absl::StatusOr<SlabOps> ComposeSlabOps(std::span<const Op> ops) { return Composer(ops).Slabs(); }

}  // namespace kvstow
