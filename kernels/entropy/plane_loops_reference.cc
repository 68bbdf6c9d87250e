#include <cstdlib>

#include "kernels/entropy/plane_loops.h"

namespace kvstow {
namespace {

// Returns the part of an interval that is of one sign.
RansSymbol OfSign(RansSymbol both, bool negative, uint32_t share) {
  const uint32_t positive = PositivePart(both.frequency, share);
  if (!negative) return {both.start, positive};
  return {both.start + positive, both.frequency - positive};
}

RansSymbol BaseSymbol(const std::array<uint16_t, kPlaneSymbols>& frequencies, uint32_t symbol,
                      bool negative, uint32_t share) {
  RansSymbol out{.start = 0, .frequency = frequencies[symbol]};
  for (uint32_t k = 0; k < symbol; ++k) out.start += frequencies[k];
  return symbol == 0 ? out : OfSign(out, negative, share);
}

// Returns the symbol of a bit that refines the magnitude `coarse`.
RansSymbol RefinementSymbol(const std::array<uint16_t, kPlaneContexts>& zeros, uint32_t coarse,
                            bool bit, bool negative, uint32_t share) {
  const uint32_t zero = zeros[std::min<uint32_t>(coarse, kPlaneContexts - 1)];
  const uint32_t one = kRansTotal - zero;
  if (!bit) return {0, zero};
  return coarse > 0 ? RansSymbol{zero, one} : OfSign({zero, one}, negative, share);
}

// One coefficient of up to kRansLanes tokens, at one level.
class Cell {
 public:
  Cell(const PlaneStream& stream, size_t coefficient, size_t first, size_t level)
      : tables_(stream.tables->distance[stream.Distance(level)]),
        share_(stream.ShareAt(coefficient, level)),
        lanes_(std::min(kRansLanes, stream.tokens - first)),
        row_(PlaneRow(stream.rows[coefficient], stream.ShiftAt(first), level == 0 ? 0 : level - 1)),
        base_(SplitPlaneRow(row_)),
        frequencies_(tables_.base[base_.row]),
        escape_(EscapeOf(frequencies_)) {}

  void PutBase(const int32_t* q, RansEncoder& rans) const {
    RansStep step;
    for (size_t lane = lanes_; lane-- > 0;) {
      const uint32_t magnitude = static_cast<uint32_t>(std::abs(q[lane]));
      PutPlaneRest(rans, lane, magnitude, q[lane] < 0, base_.raw_bits, escape_);
      const uint32_t symbol = std::min(magnitude >> base_.raw_bits, escape_);
      step[lane] = BaseSymbol(frequencies_, symbol, q[lane] < 0, share_);
    }
    rans.Put(step);
  }

  bool GetBase(RansDecoder& rans, uint32_t limit, int32_t* q) const {
    RansStep step;
    std::array<uint32_t, kRansLanes> magnitude{};
    std::array<bool, kRansLanes> negative{};
    for (size_t lane = 0; lane < lanes_; ++lane) {
      const auto past = [&](const RansSymbol& s) {
        return rans.Peek(lane) >= s.start + s.frequency;
      };
      const auto symbol = [&](bool is_negative) {
        return BaseSymbol(frequencies_, magnitude[lane], is_negative, share_);
      };
      while (past(symbol(magnitude[lane] > 0))) ++magnitude[lane];
      negative[lane] = magnitude[lane] > 0 && past(symbol(false));
      step[lane] = symbol(negative[lane]);
    }
    rans.Take(step);
    for (size_t lane = 0; lane < lanes_; ++lane) {
      if (!GetPlaneRest(rans, lane, base_.raw_bits, escape_, limit, magnitude[lane],
                        negative[lane]))
        return false;
      const auto value = static_cast<int32_t>(magnitude[lane]);
      q[lane] = negative[lane] ? -value : value;
    }
    return true;
  }

  void PutRefinement(const int32_t* q, RansEncoder& rans) const {
    RansStep step;
    for (size_t lane = 0; lane < lanes_; ++lane) {
      const uint32_t magnitude = static_cast<uint32_t>(std::abs(q[lane]));
      step[lane] =
          RefinementSymbol(Zeros(), magnitude >> 1, (magnitude & 1) != 0, q[lane] < 0, share_);
    }
    rans.Put(step);
  }

  void GetRefinement(RansDecoder& rans, int32_t* q) const {
    RansStep step;
    for (size_t lane = 0; lane < lanes_; ++lane) {
      const uint32_t coarse = static_cast<uint32_t>(std::abs(q[lane])), slot = rans.Peek(lane);
      const auto symbol = [&](bool is_one, bool is_negative) {
        return RefinementSymbol(Zeros(), coarse, is_one, is_negative, share_);
      };
      const bool bit = slot >= symbol(false, false).frequency;
      const bool negative = coarse > 0 ? q[lane] < 0 : bit && slot >= symbol(true, true).start;
      step[lane] = symbol(bit, negative);
      const auto value = static_cast<int32_t>(2 * coarse + (bit ? 1 : 0));
      q[lane] = negative ? -value : value;
    }
    rans.Take(step);
  }

 private:
  const std::array<uint16_t, kPlaneContexts>& Zeros() const {
    return tables_.zero[std::min(row_, kPlaneRows - 1)];
  }

  const LevelTables& tables_;
  const uint32_t share_;  // of positive signs
  const size_t lanes_;
  const int row_;
  const PlaneBaseRow base_;
  const std::array<uint16_t, kPlaneSymbols>& frequencies_;
  const uint32_t escape_;
};

void EncodeOne(const PlaneEncoding& encoding) {
  const auto& [stream, q, encoders] = encoding;
  const size_t steps = (stream.tokens + kRansLanes - 1) / kRansLanes;
  for (size_t level = 0; level < encoders.size(); ++level) {
    for (size_t i = stream.rows.size(); i-- > 0;) {
      for (size_t s = steps; s-- > 0;) {
        const Cell cell(stream, i, s * kRansLanes, level);
        std::array<int32_t, kRansLanes> coarse{};
        for (size_t lane = 0; lane < std::min(kRansLanes, stream.tokens - s * kRansLanes); ++lane) {
          const int32_t value = q[i * stream.stride + s * kRansLanes + lane];
          coarse[lane] = value / (1 << (stream.levels - 1 - level));
        }
        if (level == 0) {
          cell.PutBase(coarse.data(), encoders[level]);
        } else {
          cell.PutRefinement(coarse.data(), encoders[level]);
        }
      }
    }
  }
}

void EncodePlanes(const PlaneEncoding& one, const PlaneEncoding* other) {
  EncodeOne(one);
  if (other != nullptr) EncodeOne(*other);
}

bool DecodeOne(const PlaneDecoding& decoding) {
  const auto& [stream, decoders, q] = decoding;
  const size_t steps = (stream.tokens + kRansLanes - 1) / kRansLanes;
  for (size_t level = 0; level < decoders.size(); ++level) {
    for (size_t i = 0; i < stream.rows.size(); ++i) {
      for (size_t s = 0; s < steps; ++s) {
        int32_t* const values = q + i * stream.stride + s * kRansLanes;
        const Cell cell(stream, i, s * kRansLanes, level);
        if (level > 0) {
          cell.GetRefinement(decoders[level], values);
        } else {
          std::fill_n(values, kRansLanes, 0);
          if (!cell.GetBase(decoders[level], stream.BaseLimit(), values)) return false;
        }
      }
    }
  }
  return true;
}

bool DecodePlanes(const PlaneDecoding& one, const PlaneDecoding* other) {
  return DecodeOne(one) && (other == nullptr || DecodeOne(*other));
}

void DequantizePlanes(const PlaneStream& stream, const int32_t* q, size_t level,
                      std::span<const float> steps, float* coefficients) {
  const LevelTables& tables = stream.tables->distance[stream.Distance(level)];
  for (size_t i = 0; i < stream.rows.size(); ++i) {
    for (size_t t = 0; t < stream.tokens; ++t) {
      const size_t at = i * stream.stride + t;
      const int row = std::min(PlaneRow(stream.rows[i], stream.ShiftAt(t), level), kPlaneRows - 1);
      const uint32_t magnitude = static_cast<uint32_t>(std::abs(q[at]));
      const uint32_t centre = tables.centre[row][std::min<uint32_t>(magnitude, kPlaneSymbols - 1)];
      const float value =
          (static_cast<float>(magnitude) - 0.5f + static_cast<float>(centre) / 256) *
          steps[steps.size() == 1 ? 0 : i];
      coefficients[at] = magnitude == 0 ? 0 : q[at] < 0 ? -value : value;
    }
  }
}

}  // namespace

const PlaneEncodeLoops& PlaneEncodeLoops::Reference() {
  static constexpr PlaneEncodeLoops kLoops{EncodePlanes};
  return kLoops;
}

const PlaneDecodeLoops& PlaneDecodeLoops::Reference() {
  static constexpr PlaneDecodeLoops kLoops{DecodePlanes, DequantizePlanes};
  return kLoops;
}

}  // namespace kvstow
