// Decodes streams of the plane coder, all levels of one at once: a thread block takes a stream, and
// warp l its level l. A level needs what the one before says of the same coefficient, so the levels
// go through the coefficients one *piece* behind another. All threads write what the last level
// has done. Tokens stand in their places (entropy/plane_order.h) until they are written.
//
// The steps are those of plane_loops_reference.cc.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_PLANE_DECODE_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_PLANE_DECODE_CUH_

#include "kernels/cuda/joint/plane_order.cuh"
#include "kernels/cuda/joint/plane_piece.cuh"
#include "kernels/cuda/joint/rans_lanes.cuh"
#include "kernels/device/plane_layout.h"

namespace kvstow::gpu {

// The part that the lanes of one level do: of the base, or of a refinement; see DecodePlanes.
// `whole`: every step has a token for each lane.
template <bool base, bool whole>
struct LevelDecoding {
  const PlaneTable& table;
  const int8_t* shifts;  // of the rows of each kRansLanes places
  uint32_t level, tokens, limit;
  LaneDecoder& rans;

  // What a step needs and its states do not tell. It is looked up a step ahead, while the lanes
  // wait for each other.
  struct Ahead {
    PerLane<uint32_t> at, raw_bits;  // row of the table; or the frequency of a bit 0
    PerLane<int32_t> before;
  };
  KVSTOW_GPU Ahead LookUp(int row, uint32_t first, const int32_t* values) const {
    Ahead ahead;
    const int shift = shifts[first < tokens ? first / kRansLanes : 0];
    Lanes::For([&](uint32_t l) {
      // Behind the last token it looks at one that is there.
      const uint32_t t = (whole ? first < tokens : first + l < tokens) ? first + l : l;
      if constexpr (base) {
        const uint32_t split = table.splits[PlaneRow(row, shift, 0)];
        ahead.at[l] = split & 0xff, ahead.raw_bits[l] = Has(first, l) ? split >> 8 : 0;
      } else {
        const int32_t before = values[t];
        const auto coarse = static_cast<uint32_t>(before < 0 ? -before : before);
        ahead.before[l] = before;
        ahead.at[l] = ZeroOf(table, level, PlaneRow(row, shift, level - 1), coarse);
      }
    });
    return ahead;
  }

  // Decodes the step from token `first` on to values of all lanes: of the base,
  KVSTOW_GPU void Base(const Ahead& ahead, uint32_t share, uint32_t first, int32_t* out) const {
    PerLane<uint32_t> magnitude;
    PerLane<bool> negative, escapes;
    Lanes::For([&](uint32_t l) {
      const uint32_t x = rans.x[l], slot = SlotOf(x);
      const uint32_t* const symbols = table.symbols[ahead.at[l]];
      const uint32_t bucket = table.buckets[ahead.at[l]][slot / kBucketSlots];
      uint32_t k = (bucket & 0xff) + (slot % kBucketSlots >= bucket >> 8 ? 1 : 0);
      uint32_t symbol = symbols[k];
      while (slot >= (symbol & 0xffff) + (symbol >> 16 & 0x7fff)) symbol = symbols[++k];
      const uint32_t both = symbol >> 16 & 0x7fff, within = slot - (symbol & 0xffff);
      const uint32_t positive = k > 0 ? PositivePart(both, share) : both;
      const bool below = within >= positive;
      const uint32_t frequency = below ? both - positive : positive;
      const uint32_t next = frequency * (x >> kRansBits) + within - (below ? positive : 0);
      rans.x[l] = Has(first, l) ? next : x;
      magnitude[l] = k, negative[l] = below;
      escapes[l] = Has(first, l) && (symbol & kIsEscape) != 0;
    });
    rans.Refill();
    const uint32_t rest =
        Lanes::Ballot([&](uint32_t l) { return escapes[l] || ahead.raw_bits[l] > 0; });
    if (rest != 0) Rest(rest, escapes, ahead, magnitude, negative);
    Lanes::For([&](uint32_t l) {
      const auto value = static_cast<int32_t>(magnitude[l]);
      if (Has(first, l)) out[first + l] = negative[l] ? -value : value;
    });
  }

  // or of a refinement.
  KVSTOW_GPU void Refine(const Ahead& ahead, uint32_t share, uint32_t first,
                         int32_t* values) const {
    Lanes::For([&](uint32_t l) {
      const int32_t before = ahead.before[l];
      const auto coarse = static_cast<uint32_t>(before < 0 ? -before : before);
      const uint32_t x = rans.x[l], slot = SlotOf(x), zero = ahead.at[l], one = kRansTotal - zero;
      const uint32_t positive = coarse == 0 ? PositivePart(one, share) : one;
      const bool bit = slot >= zero, below = slot >= zero + positive;
      const uint32_t start = below ? zero + positive : bit ? zero : 0;
      const uint32_t frequency = below ? one - positive : bit ? positive : zero;
      const bool negative = coarse == 0 ? below : before < 0;
      const auto value = static_cast<int32_t>(2 * coarse + (bit ? 1 : 0));
      rans.x[l] = Has(first, l) ? Advanced(x, start, frequency) : x;
      if (Has(first, l)) values[first + l] = negative ? -value : value;
    });
    rans.Refill();
  }

 private:
  KVSTOW_GPU bool Has(uint32_t first, uint32_t l) const { return whole || first + l < tokens; }

  // GetPlaneRest of the lanes of `rest`.
  KVSTOW_GPU void Rest(uint32_t rest, const PerLane<bool>& escapes, const Ahead& ahead,
                       PerLane<uint32_t>& magnitude, PerLane<bool>& negative) const {
    const bool one_by_one =
        rans.Tight() || Lanes::Ballot([&](uint32_t l) { return escapes[l]; }) != 0;
    if (!one_by_one) return RawBits(ahead.raw_bits, magnitude, negative);
    for (uint32_t l = 0; l < kRansLanes; ++l) {
      if ((rest >> l & 1) == 0) continue;
      rans.Alone(l, [&](LoneLane& lane) {
        lane.damaged |= !GetPlaneRest(lane, l, ahead.raw_bits[l], table.escape[ahead.at[l]], limit,
                                      magnitude[l], negative[l]);
      });
    }
  }

  // GetPlaneRest of all lanes at once, where no value is above its escape. A lane has one or two
  // takes, the second of one bit, and needs at most one word for both.
  KVSTOW_GPU void RawBits(const PerLane<uint32_t>& raw_bits, PerLane<uint32_t>& magnitude,
                          PerLane<bool>& negative) const {
    PerLane<bool> waits;  // its second take needs the word that its first one asked for
    const auto take_sign = [&](uint32_t l) {
      negative[l] = SlotOf(rans.x[l]) >= kRansTotal / 2;
      rans.x[l] = Advanced(rans.x[l], negative[l] ? kRansTotal / 2 : 0, kRansTotal / 2);
    };
    Lanes::For([&](uint32_t l) {
      if (raw_bits[l] == 0) return;
      const uint32_t frequency = kRansTotal >> raw_bits[l];
      const uint32_t low = SlotOf(rans.x[l]) / frequency;
      rans.x[l] = Advanced(rans.x[l], low * frequency, frequency);
      const bool signs = magnitude[l] == 0 && low > 0;
      magnitude[l] = magnitude[l] << raw_bits[l] | low;
      waits[l] = signs && rans.x[l] < kRansLow;
      if (signs && !waits[l]) take_sign(l);
    });
    // Without words left, none of them gets one.
    rans.Refill();
    Lanes::For([&](uint32_t l) {
      if (waits[l]) take_sign(l);
    });
  }
};

struct DecodePlanes {
  uint32_t Blocks(const PlaneDecodeLaunch& launch) const { return launch.streams; }
  static constexpr size_t SharedBytes(const PlaneDecodeLaunch& launch) {
    return PlaneSharedBytes(launch.decoded, launch.most_tokens);
  }

  template <typename Run>
  KVSTOW_GPU void Code(const PlaneDecodeLaunch& launch, uint32_t, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const PlaneJob& job = launch.jobs[block];
    const Memory memory(launch, shared);
    const uint32_t pieces = (job.rank + kPieceRows - 1) / kPieceRows;
    run([&](uint32_t thread) { CopyTable(launch.table, memory.table, thread); });
    run([&](uint32_t thread) {
      const uint32_t level = thread / kWarp;
      if (level < launch.decoded && Lanes::Has(thread)) Begin(launch, job, memory, level);
    });
    run([&](uint32_t thread) { FindPlaces(memory.energies, job.tokens, memory.order, thread); });
    run([&](uint32_t thread) {
      FindShifts(memory.energies, memory.order, job.tokens, memory.shifts, thread);
    });
    for (uint32_t turn = 0; turn < pieces + launch.decoded; ++turn) {
      run([&](uint32_t thread) {
        if (turn >= launch.decoded) Put(launch, job, memory, turn - launch.decoded, thread);
        const uint32_t level = thread / kWarp;
        if (level >= launch.decoded || turn < level || turn - level >= pieces) return;
        if (Lanes::Has(thread)) Decode(launch, job, memory, level, turn - level);
      });
    }
    run([&](uint32_t thread) {
      const uint32_t level = thread / kWarp;
      if (level >= launch.decoded || !Lanes::Has(thread)) return;
      const LaneDecoder rans(WordsOf(launch, job, level), job.words[level], memory.saved[level]);
      if (!rans.AtEnd()) launch.refused[job.page] = 1;
    });
  }

 private:
  static_assert(kMaxPlaneLevels * sizeof(SavedDecoder) <= kPlaneSavedBytes);
  // Shared memory of a block. Piece p lies in place p of one more than there are levels.
  struct Memory {
    PlaneTable* table;
    SavedDecoder* saved;
    uint8_t* energies;  // of each token
    int8_t* shifts;     // of each kRansLanes places
    uint16_t* order;    // the token of each place
    int32_t* pieces;
    uint32_t most, places;

    KVSTOW_GPU Memory(const PlaneDecodeLaunch& launch, uint8_t* shared)
        : table(reinterpret_cast<PlaneTable*>(shared)),
          saved(reinterpret_cast<SavedDecoder*>(shared + sizeof(PlaneTable))),
          energies(shared + sizeof(PlaneTable) + kPlaneSavedBytes),
          shifts(reinterpret_cast<int8_t*>(energies + launch.most_tokens)),
          order(reinterpret_cast<uint16_t*>(energies + size_t{2} * launch.most_tokens)),
          pieces(reinterpret_cast<int32_t*>(energies + PlaneOrderBytes(launch.most_tokens))),
          most(launch.most_tokens),
          places(launch.decoded + 1) {}
    // The values of a coefficient of a piece, [places].
    KVSTOW_GPU int32_t* Row(uint32_t piece, uint32_t row) const {
      return pieces + (size_t{piece % places} * kPieceRows + row) * most;
    }
  };

  KVSTOW_GPU static const uint16_t* WordsOf(const PlaneDecodeLaunch& launch, const PlaneJob& job,
                                            uint32_t level) {
    return launch.words + job.words_at[level];
  }

  // Begins a level. That of the base has the energy classes of the tokens first.
  KVSTOW_GPU static void Begin(const PlaneDecodeLaunch& launch, const PlaneJob& job,
                               const Memory& memory, uint32_t level) {
    LaneDecoder rans(WordsOf(launch, job, level), job.words[level]);
    for (uint32_t first = 0; level == 0 && first < job.tokens; first += kRansLanes)
      Energies(job, memory, first, rans);
    rans.Save(memory.saved[level]);
  }

  // Decodes the classes of a token for each lane. Each is a step of its own.
  KVSTOW_GPU static void Energies(const PlaneJob& job, const Memory& memory, uint32_t first,
                                  LaneDecoder& rans) {
    const auto find = [&](uint32_t l, uint32_t slot) {
      uint32_t e = 0;
      while (slot >= (memory.table->energy[e] & 0xffff) + (memory.table->energy[e] >> 16)) ++e;
      memory.energies[first + l] = static_cast<uint8_t>(e);
      return memory.table->energy[e];
    };
    if (!rans.Tight()) {
      Lanes::For([&](uint32_t l) {
        if (first + l >= job.tokens) return;
        const uint32_t symbol = find(l, SlotOf(rans.x[l]));
        rans.x[l] = Advanced(rans.x[l], symbol & 0xffff, symbol >> 16);
      });
      return rans.Refill();
    }
    for (uint32_t l = 0; l < kRansLanes && first + l < job.tokens; ++l) {
      rans.Alone(l, [&](LoneLane& lane) {
        const uint32_t symbol = find(l, SlotOf(lane.x));
        lane.Take(symbol & 0xffff, symbol >> 16);
      });
    }
  }

  // Decodes a piece at a level.
  KVSTOW_GPU static void Decode(const PlaneDecodeLaunch& launch, const PlaneJob& job,
                                const Memory& memory, uint32_t level, uint32_t piece) {
    const bool whole = job.tokens % kRansLanes == 0;
    if (level == 0 && whole) return DecodeSteps<true, true>(launch, job, memory, level, piece);
    if (level == 0) return DecodeSteps<true, false>(launch, job, memory, level, piece);
    if (whole) return DecodeSteps<false, true>(launch, job, memory, level, piece);
    DecodeSteps<false, false>(launch, job, memory, level, piece);
  }
  template <bool base, bool whole>
  KVSTOW_GPU static void DecodeSteps(const PlaneDecodeLaunch& launch, const PlaneJob& job,
                                     const Memory& memory, uint32_t level, uint32_t piece) {
    SavedDecoder& saved = memory.saved[level];
    LaneDecoder rans(WordsOf(launch, job, level), job.words[level], saved);
    const LevelDecoding<base, whole> decoding{*memory.table,
                                              memory.shifts,
                                              level,
                                              job.tokens,
                                              uint32_t{kPlaneMaxMagnitude} >> (launch.levels - 1),
                                              rans};
    for (uint32_t r = 0; r < kPieceRows && piece * kPieceRows + r < job.rank; ++r) {
      const uint32_t i = piece * kPieceRows + r;
      const int row = launch.rows[job.rows_at + i];
      const int tilt = job.tilts_at == kNotThere ? 0 : launch.tilts[job.tilts_at + i];
      const uint32_t share = memory.table->share[level][tilt + kMaxPlaneTilt];
      int32_t* const values = memory.Row(piece, r);
      auto ahead = decoding.LookUp(row, 0, values);
      for (uint32_t first = 0; first < job.tokens; first += kRansLanes) {
        const auto now = ahead;
        ahead = decoding.LookUp(row, first + kRansLanes, values);
        if constexpr (base) {
          decoding.Base(now, share, first, values);
        } else {
          decoding.Refine(now, share, first, values);
        }
      }
    }
    rans.Save(saved);
  }

  // Writes a piece that all levels have: the centroids, as PlaneCoder::Dequantize makes them.
  KVSTOW_GPU static void Put(const PlaneDecodeLaunch& launch, const PlaneJob& job,
                             const Memory& memory, uint32_t piece, uint32_t thread) {
    const uint32_t level = launch.decoded - 1;
    for (uint32_t p = thread; p < job.tokens; p += kThreads) {
      const uint32_t t = memory.order[p];
      const float factor = job.factors_at == kNotThere ? 1.0f : launch.factors[job.factors_at + t];
      uint16_t bits[kPieceRows] = {};
      for (uint32_t r = 0; r < kPieceRows && piece * kPieceRows + r < job.rank; ++r) {
        const int32_t q = memory.Row(piece, r)[p];
        const auto magnitude = static_cast<uint32_t>(q < 0 ? -q : q);
        if (magnitude == 0) continue;
        const int base = launch.rows[job.rows_at + piece * kPieceRows + r];
        const int at = PlaneRow(base, memory.shifts[p / kRansLanes], level);
        const float value = CentreOf(*memory.table, level, at, magnitude) * launch.step * factor;
        bits[r] = FloatToBf16(q < 0 ? -value : value);
      }
      Words words;
      for (uint32_t i = 0; i < 4; ++i)
        words.word[i] = bits[2 * i] | uint32_t{bits[2 * i + 1]} << 16;
      StoreWords(words, launch.coefficients + job.coefficients + size_t{t} * job.stride +
                            piece * kPieceRows);
    }
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_PLANE_DECODE_CUH_
