#include "kernels/entropy/small_integers.h"

#include <array>
#include <cmath>

#include "base/bytes.h"
#include "kernels/entropy/rans.h"

namespace kvstow {
namespace {

constexpr size_t kMostValues = 2 * kMaxSmallInteger + 1;
// exp(-1 / s) for s = .15, .25, .4, .6, .9, 1.3, 2, 3, 5 and 8, in 2^-16.
constexpr std::array<uint64_t, kMaxSpread> kFall = {83,    1200,  5380,  12378, 21574,
                                                    30367, 39750, 46959, 53656, 57835};

// Places of values: 0, 1, -1, 2, -2, ...
constexpr size_t PlaceOf(int value) {
  return static_cast<size_t>(value > 0 ? 2 * value - 1 : -2 * value);
}
constexpr int ValueOf(size_t place) {
  const int half = static_cast<int>((place + 1) / 2);
  return place % 2 == 1 ? half : -half;
}

struct Frequencies {
  std::array<uint32_t, kMostValues + 1> start{};  // of each place; kRansTotal behind the last
  uint32_t Of(size_t place) const { return start[place + 1] - start[place]; }
};

// Each place has at least 1; what the division leaves over goes to 0.
Frequencies FrequenciesOf(uint32_t spread, int limit) {
  const auto places = static_cast<size_t>(2 * limit + 1);
  std::array<uint64_t, kMaxSmallInteger + 1> weights{uint64_t{1} << 30};
  uint64_t sum = weights[0];
  for (size_t k = 1; k <= static_cast<size_t>(limit); ++k) {
    weights[k] = weights[k - 1] * kFall[spread - 1] >> 16;
    sum += 2 * weights[k];
  }
  std::array<uint32_t, kMostValues> frequencies{};
  uint32_t left = kRansTotal;
  for (size_t place = 0; place < places; ++place) {
    const uint64_t weight = weights[(place + 1) / 2];
    frequencies[place] = 1 + static_cast<uint32_t>(weight * (kRansTotal - places) / sum);
    left -= frequencies[place];
  }
  frequencies[0] += left;
  Frequencies out;
  for (size_t place = 0; place < kMostValues; ++place)
    out.start[place + 1] = out.start[place] + frequencies[place];
  return out;
}

}  // namespace

std::vector<float> SmallIntegerBits(uint32_t spread, int limit) {
  const Frequencies frequencies = FrequenciesOf(spread, limit);
  std::vector<float> bits;
  for (int value = -limit; value <= limit; ++value) {
    const auto frequency = static_cast<float>(frequencies.Of(PlaceOf(value)));
    bits.push_back(static_cast<float>(kRansBits) - std::log2(frequency));
  }
  return bits;
}

void PutSmallIntegers(std::span<const int8_t> values, uint32_t spread, int limit,
                      std::string& out) {
  const Frequencies frequencies = FrequenciesOf(spread, limit);
  uint32_t state = kRansLow;
  std::vector<uint16_t> words;  // the last read first
  for (size_t i = values.size(); i-- > 0;) {
    const size_t place = PlaceOf(values[i]);
    const uint32_t frequency = frequencies.Of(place);
    if (state > RansEncoder::Most(frequency)) {
      words.push_back(static_cast<uint16_t>(state));
      state >>= 16;
    }
    state = (state / frequency << kRansBits) + state % frequency + frequencies.start[place];
  }
  ByteWriter writer;
  writer.Put(state);
  for (size_t i = words.size(); i-- > 0;) writer.Put(words[i]);
  out += writer.bytes();
}

absl::Status GetSmallIntegers(std::span<const uint8_t>& bytes, uint32_t spread, int limit,
                              std::span<int8_t> values) {
  const Frequencies frequencies = FrequenciesOf(spread, limit);
  ByteReader reader(bytes);
  uint32_t state = reader.Get<uint32_t>();
  for (int8_t& value : values) {
    const uint32_t slot = state & (kRansTotal - 1);
    size_t place = 0;
    while (slot >= frequencies.start[place + 1]) ++place;
    value = static_cast<int8_t>(ValueOf(place));
    state = frequencies.Of(place) * (state >> kRansBits) + slot - frequencies.start[place];
    if (state < kRansLow) state = state << 16 | reader.Get<uint16_t>();
  }
  if (!reader.ok() || state != kRansLow) {
    return absl::DataLossError("a list of small integers is cut or does not end well");
  }
  bytes = bytes.subspan(bytes.size() - reader.remaining());
  return absl::OkStatus();
}

}  // namespace kvstow
