// The memory of a page in an object of Python: anything with the buffer protocol (bytes, numpy) or
// DLPack (torch, JAX), on the host or on a GPU.
//
// Nothing is copied. Functions throw nanobind::value_error, which names the argument, for an object
// that has no bytes, is on a GPU that is not the client's, is not contiguous, cannot be written, or
// has another dtype or shape than the space. The caller holds the GIL.
#ifndef KVSTOW_CLIENT_PYTHON_NATIVE_PAGE_BYTES_H_
#define KVSTOW_CLIENT_PYTHON_NATIVE_PAGE_BYTES_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string>

#include "client/python/native/references.h"
#include "kernels/page/page.h"

namespace kvstow::python {

enum class Access : uint8_t { kRead, kWrite };

inline constexpr int kNoGpu = -1;

struct PageMemory {
  std::span<uint8_t> bytes;
  uint32_t tokens = 0;  // that fit: bytes over the bytes of a token
  bool on_gpu = false;
};

// The memory that a call takes: how many layers of it, and on which GPU beside the host's.
struct Wanted {
  const KvSpec& spec;
  uint32_t layers = 0;
  Access access = Access::kRead;
  int gpu = kNoGpu;
};

// The page of `wanted.spec`, or some layers of it, that `object` holds. Accepts bytes and integers
// of any shape, and values of the space's dtype of one axis or of the page's: [layers, 2, tokens,
// kv_heads, head_dim], without the 2 where there is no V. `references` keeps the object and its
// memory.
PageMemory MemoryOf(nanobind::handle object, const Wanted& wanted, const std::string& argument,
                    References& references);

}  // namespace kvstow::python

#endif  // KVSTOW_CLIENT_PYTHON_NATIVE_PAGE_BYTES_H_
