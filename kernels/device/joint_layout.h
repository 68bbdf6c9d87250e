// One run of layers of up to kPagesALaunch calibrated pages on the GPU: the facts that its kernels
// get, and the seam between them and the host's part (device_joint_codec.h).
//
// A *row* is a token of a page that goes through the transform: all except the first tokens of a
// text, pages one after another. A vector has K of all layers of the run, then V (joint_vectors.h).
// Matrices and vectors of a product are bf16, its sums F32; rows, and how many rows a matrix has,
// are padded to multiples of kProductWidth with zeros.
//
// Values; no ownership; pointers are of device memory (of the host's in the emulation that tests
// use).
#ifndef KVSTOW_KERNELS_DEVICE_JOINT_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_JOINT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/device/asking_layout.h"
#include "kernels/device/device.h"
#include "kernels/device/plane_layout.h"
#include "kernels/device/slab_layout.h"
#include "kernels/device/token_layout.h"
#include "kernels/page/page.h"

namespace kvstow::gpu {

inline constexpr uint32_t kProductWidth = 8;
constexpr uint32_t PaddedWidth(size_t values) {
  return static_cast<uint32_t>((values + kProductWidth - 1) / kProductWidth * kProductWidth);
}

// Where a value of a vector stands in a raw page, and how RoPE turns it.
struct JointColumn {
  static constexpr uint16_t kNotTurned = UINT16_MAX;
  uint16_t layer = 0, value = 0;  // of the run; of a token's row
  uint16_t pair = kNotTurned;     // of all pairs of the model's RoPEs
  int16_t other = 0;              // how far the other of the pair is; below 0 for the second
  uint8_t part = 0;               // K or V
};

struct JointLaunch {
  uint32_t pages = 0;
  uint32_t tokens = 0, first = 0;  // of a page; so many of them are first tokens
  // The run.
  uint32_t first_layer = 0, layers = 0;
  uint32_t heads = 0, dim[2] = {};  // of K and V
  size_t layer_bytes = 0;           // raw
  DType dtype = DType::kF16;
  uint32_t width = 0, rank = 0;
  // RoPE: radians a position of each pair (device_ropes.h), K times `magnitude`.
  uint32_t pairs = 0;
  float magnitude = 1;
  const double* frequencies = nullptr;
  uint64_t first_position[kPagesALaunch] = {};
  // The calibration.
  const uint16_t* matrix = nullptr;  // [width, padded rank] encoding, [rank, padded width] decoding
  const float* mean = nullptr;       // [width]
  const JointColumn* columns = nullptr;  // [width]
  const float* sigma = nullptr;          // [rank]
  const float* weights = nullptr;        // of ImportanceModel, null: no step classes
  uint32_t features = 0;                 // clipped ones
  uint32_t quarter = 0;  // leading coefficients of which importance knows the energy
  uint32_t telling = 0;  // leading coefficients that tell how large a token is
  float focus = 0, inverse_step = 0;
  // What tokens foretell: the product of their features with means. Null: there is no vocabulary.
  const uint16_t* token_rows = nullptr;   // [rows, padded token_width]
  const uint16_t* token_means = nullptr;  // [token_width, padded width]
  const float* token_weights = nullptr;   // of features, beside `weights`, or null
  uint32_t token_width = 0;               // features and a 1
  // log2 of what attention makes of steps, [pages, tokens]; null: no page asks.
  const float* log_steps = nullptr;
  const float* end_steps = nullptr;  // EndLogSteps of these pages, [tokens]
  // Memory of the launch.
  float *cosines = nullptr, *sines = nullptr;  // of RoPE's angles, [rows, pairs]
  uint16_t* narrow = nullptr;                  // what goes into the product, [rows, padded]
  float* wide = nullptr;                       // what comes out, [rows, padded]
  uint8_t* head = nullptr;  // raw first tokens, [pages, layers, K and V, first, row]
  int16_t* q = nullptr;     // magnitudes at the finest step, [rows, padded rank]
  float* sample = nullptr;  // coefficients over their factors, [pages, sampled, rank]
  uint32_t sampled = 0;     // tokens of a page (methods/joint_sampling.h)
  uint8_t *energies = nullptr, *classes = nullptr;  // [rows]
  uint32_t* refused = nullptr;                      // [pages]: 1 = for the CPU
  uint8_t* page[kPagesALaunch] = {};                // raw

  constexpr uint32_t coded() const { return tokens - first; }
  constexpr uint32_t rows() const { return pages * coded(); }
  constexpr size_t row_values(uint32_t part) const { return size_t{heads} * dim[part]; }
};
static_assert(sizeof(JointLaunch) <= 4096, "a kernel's arguments");

// y[rows, to] = x[rows, from] m, with m [from, to]; rows are as far apart as the padded widths.
struct JointProduct {
  const uint16_t *x = nullptr, *m = nullptr;
  float* y = nullptr;
  uint32_t rows = 0, from = 0, to = 0;
  bool adds = false;  // to what y has
};
constexpr JointProduct ProductOf(const JointLaunch& launch, bool encoding) {
  const uint32_t from = encoding ? launch.width : launch.rank;
  const uint32_t to = encoding ? launch.rank : launch.width;
  return {launch.narrow, launch.matrix, launch.wide, launch.rows(), from, to};
}
// What tokens foretell of vectors, to `wide`: before a run is encoded, and on top of what ProductOf
// decodes.
constexpr JointProduct TokenProductOf(const JointLaunch& launch, bool encoding) {
  return {launch.token_rows,  launch.token_means, launch.wide, launch.rows(),
          launch.token_width, launch.width,       !encoding};
}

}  // namespace kvstow::gpu

namespace kvstow {

// Thread-safe. Calls return when the work is done.
class JointEngine {
 public:
  virtual ~JointEngine() = default;

  // Where a buffer lies; null when it is not the device's.
  virtual uint8_t* AddressOf(const DeviceBuffer& buffer) const = 0;
  // How much shared memory a thread block may have.
  virtual size_t shared_bytes() const = 0;
  // Raw pages to the ids and rows of `tokens`, and to the log steps of `asks`, one after another.
  // Then raw pages to head, q, energies, classes, sample and refused, one run after another; then
  // those to the streams of `planes`. The asks may share their other memory, and so may the runs.
  virtual absl::Status Encode(const gpu::TokenLaunch& tokens, std::span<const gpu::AskLaunch> asks,
                              std::span<const gpu::JointLaunch> runs,
                              const gpu::PlaneEncodeLaunch& planes) = 0;
  virtual absl::Status Move(const gpu::WordsLaunch& launch) = 0;
  // Streams to the coefficients that the runs have as `narrow`, and the ids of `tokens` to rows;
  // then `narrow` and `head` of one run after another to raw pages. The runs may share their other
  // memory.
  virtual absl::Status Decode(const gpu::PlaneDecodeLaunch& planes, const gpu::TokenLaunch& tokens,
                              std::span<const gpu::JointLaunch> runs) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_JOINT_LAYOUT_H_
