#include "kernels/cuda/joint/cublas.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

absl::Status ToStatus(cublasStatus_t code, absl::string_view what) {
  if (code == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat("cuBLAS: ", what, ": code ", static_cast<int>(code));
  return code == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

template <typename F>
absl::Status Find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("cuBLAS has no ", name));
}

}  // namespace

absl::StatusOr<Cublas::Functions> Cublas::Load() {
  // The version whose header this was compiled with; it stays loaded.
  const std::string name = absl::StrCat("libcublas.so.", CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnimplementedError(absl::StrCat("calibrated pages on a GPU need ", name, ": ",
                                                 dlerror(), "; code them on the CPU"));
  }
  Functions out;
  KVSTOW_RETURN_IF_ERROR(Find(library, "cublasCreate_v2", out.create));
  KVSTOW_RETURN_IF_ERROR(Find(library, "cublasDestroy_v2", out.destroy));
  KVSTOW_RETURN_IF_ERROR(Find(library, "cublasSetStream_v2", out.set_stream));
  KVSTOW_RETURN_IF_ERROR(Find(library, "cublasGemmEx", out.gemm));
  return out;
}

absl::StatusOr<std::unique_ptr<Cublas>> Cublas::Open() {
  static const auto* const functions = new absl::StatusOr<Functions>(Load());
  KVSTOW_RETURN_IF_ERROR(functions->status());
  std::unique_ptr<Cublas> out(new Cublas(**functions));
  KVSTOW_RETURN_IF_ERROR(ToStatus(out->functions_.create(&out->handle_), "starting"));
  return out;
}

Cublas::~Cublas() {
  if (handle_ != nullptr) functions_.destroy(handle_);
}

absl::Status Cublas::Multiply(const gpu::JointProduct& p, cudaStream_t stream) {
  KVSTOW_RETURN_IF_ERROR(ToStatus(functions_.set_stream(handle_, stream), "setting its stream"));
  // cuBLAS has matrices column by column: to it ours are transposed, and y^T = m^T x^T. The padding
  // of m is zeros, and so are those columns of y. It is part of the product: for widths that are no
  // multiple of 8, cuBLAS has slow kernels only.
  const auto to = static_cast<int>(gpu::PaddedWidth(p.to));
  const auto from = static_cast<int>(gpu::PaddedWidth(p.from));
  const float one = 1, kept = p.adds ? 1 : 0;
  return ToStatus(functions_.gemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, to, static_cast<int>(p.rows),
                                  from, &one, p.m, CUDA_R_16BF, to, p.x, CUDA_R_16BF, from, &kept,
                                  p.y, CUDA_R_32F, to, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                  "a product");
}

}  // namespace kvstow
