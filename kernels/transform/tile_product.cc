#include "kernels/transform/tile_product.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvstow {

#if defined(__x86_64__)
namespace {

#define KVSTOW_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr size_t kTile = 16;                                  // rows of a tile, and columns in F32
constexpr size_t kTileInner = 32;                             // bf16 of a tile's row
constexpr size_t kPanelTiles = PackedMatrix::kPanel / kTile;  // of columns, rounded together
constexpr size_t kAhead = 16;  // rows of a panel: 4 KiB. The processor's own prefetch ends there
constexpr size_t kTileValues = kTile * kTileInner;
constexpr size_t kInner = 512;      // of the matrix at a time: its part of x stays in the cache
constexpr size_t kChunkRows = 256;  // of x at a time: so do the sums

// Asks the system for the tiles' state, once a process. Compilers do not know the names of AMX's
// parts alike; the bits are of CPUID's leaf 7.
bool AskForTiles() {
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kBf16) == 0 || (d & kTiles) == 0) return false;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl")) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Palette 1: eight tiles, each of 16 rows of 64 bytes. A constant: GCC takes the instruction for a
// read of 8 bytes, and drops what a local one has behind them.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

// The tiles of this thread, for a scope.
class TileScope {
 public:
  KVSTOW_AMX TileScope() { _tile_loadconfig(&kTileConfig); }
  KVSTOW_AMX ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Masks of all lanes: GCC 12 takes forms without a mask for reads of uninitialised memory.
constexpr __mmask16 kAll = 0xffff;

// Rounds 16 values to words of bf16.
KVSTOW_AMX inline __m256i ToBf16(__m512 v) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
}

// Memory of a chunk of rows.
struct Work {
  Work(size_t rows, size_t inner, size_t columns)
      : x(std::make_unique_for_overwrite<uint16_t[]>(rows * inner)),
        m(std::make_unique_for_overwrite<uint16_t[]>(PackedMatrix::kPanel * inner)),
        sums(std::make_unique_for_overwrite<float[]>(rows * columns)) {}

  const std::unique_ptr<uint16_t[]> x;  // [row tiles][inner tiles][16][32]
  // A panel of the matrix: [inner tiles][kPanelTiles][16 pairs of rows][16][2].
  const std::unique_ptr<uint16_t[]> m;
  const std::unique_ptr<float[]> sums;  // [row tiles][column tiles][16][16]
};

constexpr size_t Padded(size_t n, size_t to) { return (n + to - 1) / to * to; }

KVSTOW_AMX void RoundRows(const float* x, size_t stride, size_t count, size_t row_tiles,
                          size_t inner, uint16_t* to) {
  const size_t inner_tiles = Padded(inner, kTileInner) / kTileInner;
  for (size_t t = 0; t < row_tiles * kTile; ++t) {
    for (size_t i = 0; i < inner_tiles * kTileInner; i += kTile) {
      __m256i words = _mm256_setzero_si256();
      if (t < count && i < inner) {
        const auto mask = static_cast<__mmask16>((1u << std::min(kTile, inner - i)) - 1);
        words = ToBf16(_mm512_maskz_loadu_ps(mask, x + t * stride + i));
      }
      const size_t tile = t / kTile * inner_tiles + i / kTileInner;
      const size_t at = (tile * kTile + t % kTile) * kTileInner + i % kTileInner;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), words);
    }
  }
}

// Rows of a panel from `first` on.
KVSTOW_AMX void RoundPanel(const PackedMatrix& m, size_t panel, size_t first, size_t inner,
                           uint16_t* to) {
  for (size_t pair = 0; pair < Padded(inner, kTileInner) / 2; ++pair) {
    for (size_t part = 0; part < kPanelTiles; ++part) {
      __m512i words[2] = {};  // in the lower halves of lanes
      for (size_t r = 0; r < 2; ++r) {
        if (2 * pair + r >= inner) continue;
        const float* const row = m.PanelRow(panel, first + 2 * pair + r) + part * kTile;
        _mm_prefetch(row + kAhead * PackedMatrix::kPanel, _MM_HINT_T0);
        words[r] = _mm512_maskz_cvtepu16_epi32(kAll, ToBf16(_mm512_loadu_ps(row)));
      }
      const size_t tile = pair / kTile * kPanelTiles + part;
      _mm512_storeu_si512(to + (tile * kTile + pair % kTile) * kTileInner,
                          _mm512_or_si512(words[0], _mm512_maskz_slli_epi32(kAll, words[1], 16)));
    }
  }
}

// Adds the products of two tiles of rows (the next one `inner_tiles` behind) with two of columns
// (side by side in a panel) to their sums (the next row's `next_row_tile` behind). The compiler
// does not know that tiles read and write memory: fences keep its own accesses on their side.
KVSTOW_AMX void MultiplyStep(const uint16_t* x, const uint16_t* m, size_t inner_tiles, float* first,
                             size_t next_row_tile, bool begin) {
  constexpr size_t kSums = kTile * kTile, kRowBytes = 64;
  float* const second = first + next_row_tile;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (begin) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, first, kRowBytes);
    _tile_loadd(1, first + kSums, kRowBytes);
    _tile_loadd(2, second, kRowBytes);
    _tile_loadd(3, second + kSums, kRowBytes);
  }
  for (size_t k = 0; k < inner_tiles; ++k) {
    _tile_loadd(4, x + k * kTileValues, kRowBytes);
    _tile_loadd(5, x + (inner_tiles + k) * kTileValues, kRowBytes);
    _tile_loadd(6, m + kPanelTiles * k * kTileValues, kRowBytes);
    _tile_loadd(7, m + (kPanelTiles * k + 1) * kTileValues, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, first, kRowBytes);
  _tile_stored(1, first + kSums, kRowBytes);
  _tile_stored(2, second, kRowBytes);
  _tile_stored(3, second + kSums, kRowBytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

KVSTOW_AMX void MultiplyChunk(const float* x, size_t count, size_t width, const PackedMatrix& m,
                              Columns columns, float* y, size_t stride, const Work& work) {
  const size_t row_tiles = Padded(count, 2 * kTile) / kTile;
  const size_t first = columns.first / PackedMatrix::kPanel * PackedMatrix::kPanel;
  const size_t end = columns.first + columns.count;
  const size_t column_tiles = Padded(end - first, PackedMatrix::kPanel) / kTile;
  const size_t next_row_tile = column_tiles * kTile * kTile;
  for (size_t i = 0; i < width; i += kInner) {
    const size_t inner = std::min(kInner, width - i);
    const size_t inner_tiles = Padded(inner, kTileInner) / kTileInner;
    RoundRows(x + i, width, count, row_tiles, inner, work.x.get());
    for (size_t c = 0; c < column_tiles; c += kPanelTiles) {
      RoundPanel(m, (first + c * kTile) / PackedMatrix::kPanel, i, inner, work.m.get());
      for (size_t r = 0; r < row_tiles; r += 2) {
        for (size_t part = 0; part < kPanelTiles; part += 2) {
          MultiplyStep(&work.x[r * inner_tiles * kTileValues], &work.m[part * kTileValues],
                       inner_tiles, &work.sums[r * next_row_tile + (c + part) * kTile * kTile],
                       next_row_tile, i == 0);
        }
      }
    }
  }
  for (size_t t = 0; t < count; ++t) {
    for (size_t c = 0; c < column_tiles; ++c) {
      const size_t at = first + c * kTile;
      const size_t from = std::max(at, columns.first), to = std::min(at + kTile, end);
      if (from >= to) continue;
      const size_t tile = t / kTile * column_tiles + c;
      std::memcpy(y + t * stride + (from - columns.first),
                  &work.sums[(tile * kTile + t % kTile) * kTile + (from - at)],
                  (to - from) * sizeof(float));
    }
  }
}

}  // namespace

bool HasTiles() {
  static const bool kHas = AskForTiles();
  return kHas;
}

void MultiplyRowsInTiles(const float* x, size_t count, size_t width, const PackedMatrix& m,
                         Columns columns, float* y, size_t stride) {
  if (!HasTiles()) return MultiplyRows(x, count, m, columns, y, stride);
  const Work work(Padded(std::min(count, kChunkRows), 2 * kTile),
                  Padded(std::min(width, kInner), kTileInner),
                  Padded(columns.count + PackedMatrix::kPanel, PackedMatrix::kPanel));
  const TileScope tiles;
  for (size_t t = 0; t < count; t += kChunkRows) {
    MultiplyChunk(x + t * width, std::min(kChunkRows, count - t), width, m, columns, y + t * stride,
                  stride, work);
  }
}

#else

bool HasTiles() { return false; }

void MultiplyRowsInTiles(const float* x, size_t count, size_t, const PackedMatrix& m,
                         Columns columns, float* y, size_t stride) {
  MultiplyRows(x, count, m, columns, y, stride);
}

#endif

}  // namespace kvstow
