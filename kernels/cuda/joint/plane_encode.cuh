// Encodes streams of the plane coder, all levels of one at once: a thread block takes a stream, and
// warp l its level l. All threads fetch the magnitudes of the next *piece*, some coefficients of
// all tokens, while the lanes code one. rANS codes backwards: the last coefficient comes first.
// Tokens are in their places (plane_order.cuh) from then on.
//
// The steps are those of plane_loops_reference.cc; the bytes are the CPU's.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_PLANE_ENCODE_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_PLANE_ENCODE_CUH_

#include "kernels/cuda/joint/plane_piece.cuh"
#include "kernels/cuda/joint/rans_puts.cuh"
#include "kernels/device/plane_layout.h"

namespace kvstow::gpu {

// What the lanes of one level, the base or a refinement, do with a coefficient of kRansLanes
// tokens; see EncodePlanes. `whole`: every step has a token for each lane.
template <bool base, bool whole>
struct LevelEncoding {
  const PlaneTable& table;
  const int8_t* shifts;  // of the rows of each place
  uint32_t level, levels, tokens;
  LaneEncoder& rans;

  // What a step puts. It is looked up a step ahead, while the lanes wait for each other.
  struct Ahead {
    PerLane<uint32_t> symbols;
    // The parts of a magnitude that do not fit its symbol.
    PerLane<uint32_t> magnitude, raw_bits, escape;
    PerLane<bool> negative, has_rest;
  };
  // Looks up the tokens from `first` on, of magnitudes `q`.
  KVSTOW_GPU Ahead LookUp(int row, uint32_t share, uint32_t first, const int16_t* q) const {
    Ahead ahead;
    const int moved = row + shifts[first];
    Lanes::For([&](uint32_t l) {
      const bool has = whole || first + l < tokens;
      const uint32_t t = has ? first + l : 0;
      const uint32_t magnitude =
          static_cast<uint32_t>(q[t] < 0 ? -q[t] : q[t]) >> (levels - 1 - level);
      const bool negative = q[t] < 0 && magnitude > 0;
      const uint32_t symbol = level == 0 ? BaseSymbol(moved, share, magnitude, negative, l, ahead)
                                         : BitSymbol(moved, share, magnitude, negative);
      ahead.symbols[l] = has ? symbol : kFreeSymbol;
      ahead.has_rest[l] = has && ahead.has_rest[l];
    });
    return ahead;
  }

  KVSTOW_GPU void Put(const Ahead& ahead) const {
    const uint32_t rest = base ? Lanes::Ballot([&](uint32_t l) { return ahead.has_rest[l]; }) : 0;
    if (rest != 0) {
      rans.Each(rest, [&](uint32_t l, LonePuts& lane) {
        PutPlaneRest(lane, l, ahead.magnitude[l], ahead.negative[l], ahead.raw_bits[l],
                     ahead.escape[l]);
      });
    }
    rans.Put(ahead.symbols);
  }

 private:
  // The part of a symbol that is of one sign.
  KVSTOW_GPU static uint32_t OfSign(uint32_t start, uint32_t frequency, uint32_t share,
                                    bool negative) {
    const uint32_t positive = PositivePart(frequency, share);
    return SymbolOf(negative ? start + positive : start,
                    negative ? frequency - positive : positive);
  }
  KVSTOW_GPU uint32_t BaseSymbol(int row, uint32_t share, uint32_t magnitude, bool negative,
                                 uint32_t l, Ahead& ahead) const {
    const uint32_t split = table.splits[PlaneRow(row, 0, 0)], raw_bits = split >> 8;
    const uint32_t escape = table.escape[split & 0xff], high = magnitude >> raw_bits;
    const uint32_t k = high < escape ? high : escape;
    const uint32_t symbol = table.symbols[split & 0xff][k] & ~kIsEscape;
    ahead.magnitude[l] = magnitude, ahead.negative[l] = negative;
    ahead.raw_bits[l] = raw_bits, ahead.escape[l] = escape;
    ahead.has_rest[l] = raw_bits > 0 || high >= escape;
    return k == 0 ? symbol : OfSign(symbol & 0xffff, symbol >> 16, share, negative);
  }
  KVSTOW_GPU uint32_t BitSymbol(int row, uint32_t share, uint32_t magnitude, bool negative) const {
    const uint32_t coarse = magnitude >> 1;
    const uint32_t zero = ZeroOf(table, level, PlaneRow(row, 0, level - 1), coarse);
    const uint32_t one = kRansTotal - zero;
    const uint32_t bit = coarse > 0 ? SymbolOf(zero, one) : OfSign(zero, one, share, negative);
    return (magnitude & 1) == 0 ? SymbolOf(0, zero) : bit;
  }
};

struct EncodePlanes {
  uint32_t Blocks(const PlaneEncodeLaunch& launch) const { return launch.streams; }
  size_t SharedBytes(const PlaneEncodeLaunch& launch) const {
    const size_t pieces = size_t{2} * kPieceRows * launch.most_tokens * sizeof(int16_t);
    return sizeof(PlaneTable) + SavedBytes() + launch.most_tokens + pieces;
  }

  template <typename Run>
  KVSTOW_GPU void Code(const PlaneEncodeLaunch& launch, uint32_t, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const Stream stream(launch, block, shared);
    const uint32_t pieces = (stream.body.rank + kPieceRows - 1) / kPieceRows;
    run([&](uint32_t thread) {
      CopyTable(launch.table, stream.table, thread);
      LoadShifts(stream, thread);
      LoadPiece(stream, pieces - 1, thread);
    });
    run([&](uint32_t thread) {
      if (!IsOfLevel(launch, thread)) return;
      const uint32_t level = thread / kWarp;
      LaneEncoder(RoomOf(stream, level), RoomWords(stream, level)).Save(stream.saved[level]);
    });
    for (uint32_t piece = pieces; piece-- > 0;) {
      run([&](uint32_t thread) {
        if (piece > 0) LoadPiece(stream, piece - 1, thread);
        if (IsOfLevel(launch, thread)) Encode(stream, thread / kWarp, piece);
      });
    }
    run([&](uint32_t thread) {
      if (IsOfLevel(launch, thread)) End(stream, block, thread / kWarp);
    });
  }

 private:
  static constexpr size_t SavedBytes() {
    return (kMaxPlaneLevels * sizeof(SavedEncoder) + 15) / 16 * 16;
  }
  static_assert(kMaxPlaneLevels * sizeof(SavedEncoder) <= kPlaneSavedBytes,
                "decoding needs more, see PlaneSharedBytes");

  // A stream and its shared memory. Piece p lies in place p % 2.
  struct Stream {
    const PlaneEncodeLaunch& launch;
    const PlaneEncodeJob& job;
    const PlaneBody& body;
    PlaneTable* table;
    SavedEncoder* saved;
    int8_t* shifts;
    int16_t* pieces;

    KVSTOW_GPU Stream(const PlaneEncodeLaunch& whole, uint32_t block, uint8_t* shared)
        : launch(whole),
          job(whole.jobs[block]),
          body(whole.bodies[job.body]),
          table(reinterpret_cast<PlaneTable*>(shared)),
          saved(reinterpret_cast<SavedEncoder*>(shared + sizeof(PlaneTable))),
          shifts(reinterpret_cast<int8_t*>(shared + sizeof(PlaneTable) + SavedBytes())) {
      pieces = reinterpret_cast<int16_t*>(shifts + whole.most_tokens);
    }
    // The magnitudes of a coefficient of a piece, [places].
    KVSTOW_GPU int16_t* Row(uint32_t piece, uint32_t row) const {
      return pieces + size_t{piece % 2 * kPieceRows + row} * launch.most_tokens;
    }
    KVSTOW_GPU size_t FirstAt() const { return body.energies_at + job.first; }
    KVSTOW_GPU uint8_t EnergyOf(uint32_t token) const { return launch.energies[FirstAt() + token]; }
  };

  KVSTOW_GPU static bool IsOfLevel(const PlaneEncodeLaunch& launch, uint32_t thread) {
    return thread / kWarp < launch.levels && Lanes::Has(thread);
  }
  KVSTOW_GPU static uint32_t RoomWords(const Stream& stream, uint32_t level) {
    return LevelRoom(stream.body.rank, stream.job.tokens, level);
  }
  KVSTOW_GPU static uint16_t* RoomOf(const Stream& stream, uint32_t level) {
    return stream.launch.words + stream.job.words_at +
           RoomBefore(stream.body.rank, stream.job.tokens, level);
  }

  KVSTOW_GPU static void LoadShifts(const Stream& stream, uint32_t thread) {
    for (uint32_t p = thread; p < stream.job.tokens; p += kThreads)
      stream.shifts[p] = stream.launch.shifts[stream.FirstAt() + p];
  }
  KVSTOW_GPU static void LoadPiece(const Stream& stream, uint32_t piece, uint32_t thread) {
    for (uint32_t p = thread; p < stream.job.tokens; p += kThreads) {
      const uint32_t token = stream.launch.order[stream.FirstAt() + p];
      const size_t at = stream.body.q_at + size_t{token} * stream.body.stride;
      const Words words = LoadWords(stream.launch.q + at + piece * kPieceRows);
      for (uint32_t r = 0; r < kPieceRows; ++r)
        stream.Row(piece, r)[p] = static_cast<int16_t>(words.word[r / 2] >> (r % 2 * 16));
    }
  }

  KVSTOW_GPU static void Encode(const Stream& stream, uint32_t level, uint32_t piece) {
    const bool whole = stream.job.tokens % kRansLanes == 0;
    if (level == 0 && whole) return EncodeSteps<true, true>(stream, level, piece);
    if (level == 0) return EncodeSteps<true, false>(stream, level, piece);
    if (whole) return EncodeSteps<false, true>(stream, level, piece);
    EncodeSteps<false, false>(stream, level, piece);
  }
  template <bool base, bool whole>
  KVSTOW_GPU static void EncodeSteps(const Stream& stream, uint32_t level, uint32_t piece) {
    const PlaneEncodeLaunch& launch = stream.launch;
    SavedEncoder& saved = stream.saved[level];
    LaneEncoder rans(RoomOf(stream, level), RoomWords(stream, level), saved);
    const LevelEncoding<base, whole> encoding{*stream.table, stream.shifts,     level,
                                              launch.levels, stream.job.tokens, rans};
    const uint32_t begin = piece * kPieceRows, left = stream.body.rank - begin;
    const uint32_t last = (stream.job.tokens - 1) / kRansLanes * kRansLanes;
    for (uint32_t r = left < kPieceRows ? left : kPieceRows; r-- > 0;) {
      const int row = launch.rows[stream.body.lists_at + begin + r];
      const int tilt = launch.tilts[stream.body.lists_at + begin + r];
      const uint32_t share = stream.table->share[level][tilt + kMaxPlaneTilt];
      const int16_t* const q = stream.Row(piece, r);
      auto ahead = encoding.LookUp(row, share, last, q);
      for (uint32_t first = last;; first -= kRansLanes) {
        const auto now = ahead;
        if (first > 0) ahead = encoding.LookUp(row, share, first - kRansLanes, q);
        encoding.Put(now);
        if (first == 0) break;
      }
    }
    rans.Save(saved);
  }

  // Energy classes stand before the coefficients of the base.
  KVSTOW_GPU static void End(const Stream& stream, uint32_t block, uint32_t level) {
    LaneEncoder rans(RoomOf(stream, level), RoomWords(stream, level), stream.saved[level]);
    const uint32_t tokens = stream.job.tokens;
    for (uint32_t end = tokens; level == 0 && end > 0;) {
      const uint32_t first = (end - 1) / kRansLanes * kRansLanes;
      const uint32_t lanes = (1u << (end - first)) - 1;
      rans.Each(lanes, [&](uint32_t l, LonePuts& lane) {
        const uint32_t symbol = stream.table->energy[stream.EnergyOf(first + l)];
        lane.Put(symbol & 0xffff, symbol >> 16);
      });
      end = first;
    }
    const uint32_t words = rans.Finish();
    const bool full = rans.full();
    Lanes::One(0, [&] {
      stream.launch.counts[block * stream.launch.levels + level] = words;
      if (full) stream.launch.refused[stream.body.page] = 1;
    });
  }
};

// Moves words of streams together. A block takes a stream's level.
struct MoveWords {
  uint32_t Blocks(const WordsLaunch& launch) const { return launch.move_count; }
  size_t SharedBytes(const WordsLaunch&) const { return 0; }

  template <typename Run>
  KVSTOW_GPU void Code(const WordsLaunch& launch, uint32_t, uint32_t block, uint8_t*,
                       const Run& run) const {
    const WordsMove& move = launch.moves[block];
    run([&](uint32_t thread) {
      for (uint32_t i = thread; i < move.count; i += kThreads)
        launch.to[move.to + i] = launch.from[move.from + i];
    });
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_PLANE_ENCODE_CUH_
