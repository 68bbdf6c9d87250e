#include "client/python/native/page_bytes.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvstow::python {
namespace {

namespace nb = nanobind;

constexpr Py_ssize_t kMaxItemBytes = 8;

[[noreturn]] void Refuse(const std::string& argument, const std::string& why) {
  throw nb::value_error(absl::StrCat(argument, ": ", why).c_str());
}

// An array as both protocols describe it.
struct Array {
  uint8_t* data = nullptr;
  nb::dlpack::dtype dtype{};
  std::vector<int64_t> shape;
  bool contiguous = false;
  bool read_only = false;
  int gpu = kNoGpu;

  size_t Bytes() const {
    size_t bytes = dtype.bits / 8;
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    return bytes;
  }
};

uint8_t Code(nb::dlpack::dtype_code code) { return static_cast<uint8_t>(code); }

// One item, as a format of the struct module describes it. Void and text ("2x", "2s") are bits of
// any kind. Refuses numbers in the other byte order, and what is no number.
nb::dlpack::dtype ItemOf(const Py_buffer& view, const std::string& argument) {
  const std::string_view said = view.format == nullptr ? "B" : view.format;
  if (view.itemsize > 1 && (said.starts_with('>') || said.starts_with('!'))) {
    Refuse(argument, "holds big-endian numbers: convert them, as numpy does with .astype(\"<f2\")");
  }
  const size_t order = std::min(said.find_first_not_of("@=<>!"), said.size());
  const std::string_view format = said.substr(order);
  constexpr std::string_view kReal = "efd";
  constexpr std::string_view kWhole = "cbB?hHiIlLqQnN";
  const bool real = format.size() == 1 && kReal.find(format[0]) != kReal.npos;
  const bool whole = format.size() == 1 && kWhole.find(format[0]) != kWhole.npos;
  const size_t digits = std::min(format.find_first_not_of("0123456789"), format.size());
  const bool bits = format.substr(digits) == "x" || format.substr(digits) == "s";
  if (!(real || whole || bits) || view.itemsize > kMaxItemBytes) {
    Refuse(argument, absl::StrCat("holds items of ", view.itemsize, " bytes of the format '",
                                  std::string(said), "', which are no numbers of a page"));
  }
  return {Code(real ? nb::dlpack::dtype_code::Float : nb::dlpack::dtype_code::UInt),
          static_cast<uint8_t>(view.itemsize * 8), 1};
}

std::optional<Array> ByBufferProtocol(nb::handle object, const std::string& argument,
                                      References& references) {
  if (!PyObject_CheckBuffer(object.ptr())) return std::nullopt;
  // A view keeps the memory where it is: a bytearray cannot grow while it exists.
  nb::object memory_view = nb::steal(PyMemoryView_FromObject(object.ptr()));
  if (!memory_view.is_valid()) {
    PyErr_Clear();  // numpy has formats that the protocol lacks; DLPack may have them
    return std::nullopt;
  }
  const Py_buffer& view = *PyMemoryView_GET_BUFFER(memory_view.ptr());
  Array array = {.data = static_cast<uint8_t*>(view.buf),
                 .dtype = ItemOf(view, argument),
                 .shape = {view.shape, view.shape + view.ndim},
                 .contiguous = PyBuffer_IsContiguous(&view, 'C') != 0,
                 .read_only = view.readonly != 0};
  references.Keep(std::move(memory_view));
  return array;
}

// JAX gives memory of arrays that never change, and says nothing of it in DLPack.
bool NeverChanges(nb::handle object) {
  return std::string_view(nb::str(object.type().attr("__module__")).c_str()).starts_with("jax");
}

std::optional<Array> ByDlpack(nb::handle object, Access access, References& references) {
  nb::ndarray<nb::ro> tensor;
  if (!nb::try_cast(object, tensor, /*convert=*/false)) return std::nullopt;
  const bool on_gpu = tensor.device_type() == nb::device::cuda::value;
  if (!on_gpu && tensor.device_type() != nb::device::cpu::value &&
      tensor.device_type() != nb::device::cuda_host::value) {
    return std::nullopt;
  }
  Array array = {.data = static_cast<uint8_t*>(const_cast<void*>(tensor.data())),
                 .dtype = tensor.dtype(),
                 .shape = std::vector<int64_t>(tensor.ndim()),
                 .contiguous = true,
                 .gpu = on_gpu ? tensor.device_id() : kNoGpu};
  int64_t stride = 1;
  for (size_t axis = tensor.ndim(); axis-- > 0;) {
    array.shape[axis] = static_cast<int64_t>(tensor.shape(axis));
    if (array.shape[axis] != 1 && tensor.stride(axis) != stride) array.contiguous = false;
    stride *= array.shape[axis];
  }
  if (access == Access::kWrite) {
    nb::ndarray<> writable;
    array.read_only = NeverChanges(object) || !nb::try_cast(object, writable, /*convert=*/false);
  }
  references.Keep(nb::borrow(object));
  references.Keep(std::move(tensor));
  return array;
}

std::string NameOf(nb::dlpack::dtype dtype) {
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  return absl::StrCat(dtype.code < 7 ? kinds[dtype.code] : "float8 or less, kind ",
                      dtype.code < 7 ? "" : absl::StrCat(dtype.code, " of "), dtype.bits);
}

const char* PythonName(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF32:
      return "float32";
    case DType::kF8E4M3:
      return "float8_e4m3fn";
    case DType::kF8E5M2:
      return "float8_e5m2";
  }
  return "";
}

// Bytes and integers say nothing of what they hold; a real number must be the space's.
bool Fits(nb::dlpack::dtype dtype, DType wanted) {
  if (dtype.lanes != 1) return false;
  if (dtype.code == Code(nb::dlpack::dtype_code::Int) ||
      dtype.code == Code(nb::dlpack::dtype_code::UInt)) {
    return dtype.bits == 8 || dtype.bits == 8 * DTypeBytes(wanted);
  }
  switch (wanted) {
    case DType::kF16:
      return dtype.code == Code(nb::dlpack::dtype_code::Float) && dtype.bits == 16;
    case DType::kBF16:
      return dtype.code == Code(nb::dlpack::dtype_code::Bfloat) && dtype.bits == 16;
    case DType::kF32:
      return dtype.code == Code(nb::dlpack::dtype_code::Float) && dtype.bits == 32;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return dtype.bits == 8;
  }
  return false;
}

// The page's own axes, or none where K and V differ.
std::vector<int64_t> PageShape(const KvSpec& spec, uint32_t layers, uint32_t tokens) {
  if (spec.head_dim_v == 0) return {layers, tokens, spec.kv_heads, spec.head_dim_k};
  if (spec.head_dim_v != spec.head_dim_k) return {};
  return {layers, 2, tokens, spec.kv_heads, spec.head_dim_k};
}

void CheckDevice(const Array& array, int gpu, const std::string& argument) {
  if (array.gpu == kNoGpu || array.gpu == gpu) return;
  Refuse(argument, absl::StrCat("is on CUDA GPU ", array.gpu, ", but the client has ",
                                gpu == kNoGpu ? "none" : absl::StrCat("GPU ", gpu),
                                ": make it with gpu=", array.gpu, ", or copy to the CPU"));
}

void CheckShape(const Array& array, const KvSpec& spec, uint32_t layers, uint32_t tokens,
                const std::string& argument) {
  if (array.shape.size() == 1 || array.dtype.bits == 8) return;
  const std::vector<int64_t> wanted = PageShape(spec, layers, tokens);
  if (array.shape == wanted) return;
  Refuse(argument,
         absl::StrCat("has the shape (", absl::StrJoin(array.shape, ", "), "), but a page of ",
                      tokens, " tokens has ",
                      wanted.empty() ? "K and V of different widths: pass it flat"
                                     : absl::StrCat("(", absl::StrJoin(wanted, ", "), ")")));
}

}  // namespace

PageMemory MemoryOf(nb::handle object, const Wanted& wanted, const std::string& argument,
                    References& references) {
  const auto& [spec, layers, access, gpu] = wanted;
  std::optional<Array> array = ByBufferProtocol(object, argument, references);
  if (!array) array = ByDlpack(object, access, references);
  if (!array) {
    Refuse(argument,
           absl::StrCat("a ", nb::str(object.type().attr("__name__")).c_str(),
                        " gives no memory: pass bytes, a numpy array or a tensor (detached, on the "
                        "CPU or a CUDA GPU; dtypes that neither knows: .view(uint8))"));
  }
  CheckDevice(*array, gpu, argument);
  if (!array->contiguous) {
    Refuse(argument,
           "is not contiguous in row-major order: call .contiguous() or "
           "numpy.ascontiguousarray first");
  }
  if (access == Access::kWrite && array->read_only) Refuse(argument, "is read-only");
  if (!Fits(array->dtype, spec.dtype)) {
    Refuse(argument, absl::StrCat("holds ", NameOf(array->dtype), ", but the space holds ",
                                  PythonName(spec.dtype)));
  }
  const size_t token_bytes = LayerBytes(spec, 1) * layers;
  const size_t bytes = array->Bytes();
  if (bytes == 0 || bytes % token_bytes != 0 || bytes / token_bytes > spec.page_tokens) {
    Refuse(argument, absl::StrCat("has ", bytes, " bytes, but a page has ", token_bytes,
                                  " for each of 1 to ", spec.page_tokens, " tokens"));
  }
  if (array->data == nullptr) Refuse(argument, "has no memory any more: it was freed");
  const auto tokens = static_cast<uint32_t>(bytes / token_bytes);
  CheckShape(*array, spec, layers, tokens, argument);
  return {{array->data, bytes}, tokens, array->gpu != kNoGpu};
}

}  // namespace kvstow::python
