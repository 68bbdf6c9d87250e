// The decoding loop of byte rANS, once for each SIMD target, chosen at run time: the bytes of the
// scalar reference.
#include <algorithm>

#include "kernels/entropy/byte_rans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/entropy/byte_rans_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

// Eight lanes at most: longer vectors gather no faster, and their permutations need longer tables.
constexpr size_t kMostLanes = 8;
using D = hn::CappedTag<uint32_t, kMostLanes>;

// For each set of lanes that want a word, how many lanes below each one do.
struct WordPlaces {
  constexpr WordPlaces() {
    for (size_t wanting = 0; wanting < 256; ++wanting) {
      uint8_t before = 0;
      for (size_t lane = 0; lane < kMostLanes; ++lane) {
        of[wanting][lane] = before;
        before = static_cast<uint8_t>(before + (wanting >> lane & 1));
      }
    }
  }
  alignas(64) uint8_t of[256][kMostLanes] = {};
};
constexpr WordPlaces kWordPlaces;

// Decodes a vector of lanes; answers how many words it took.
HWY_INLINE size_t DecodeLanes(const uint32_t* slots, const uint32_t* columns, uint32_t* states,
                              const uint16_t* words, uint8_t* out) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint8_t, D> d8;
  const auto low_bits = hn::Set(d, kByteRansTotal - 1);
  auto state = hn::Load(d, states);
  const auto at = hn::Add(hn::And(state, low_bits), hn::LoadU(d, columns));
  const auto slot = hn::GatherIndex(d, slots, hn::BitCast(di, at));
  const auto within = hn::And(hn::ShiftRight<8>(slot), low_bits);
  state = hn::Mul(hn::ShiftRight<19>(slot), hn::ShiftRight<kByteRansBits>(state));
  state = hn::Add(state, within);
  const auto wants = hn::Lt(state, hn::Set(d, kByteRansLow));
  uint8_t wanting[8] = {};
  hn::StoreMaskBits(d, wants, wanting);
  const auto places = hn::PromoteTo(di, hn::LoadU(d8, kWordPlaces.of[wanting[0]]));
  const auto next = hn::PromoteTo(d, hn::LoadU(d16, words));
  const auto word = hn::TableLookupLanes(next, hn::IndicesFromVec(d, places));
  const auto refilled = hn::Or(hn::ShiftLeft<16>(state), word);
  hn::Store(hn::IfThenElse(wants, refilled, state), d, states);
  hn::StoreU(hn::TruncateTo(d8, slot), d8, out);
  return hn::CountTrue(d, wants);
}

size_t DecodeSteps(const uint32_t* slots, std::span<const uint32_t> columns, size_t count,
                   ByteRansLanes& lanes, uint8_t* out, size_t done) {
  const D d;
  const size_t width = columns.size() - kByteRansLanes;
  size_t column = done % width;
  const uint8_t* next = lanes.next;
  for (; done + kByteRansLanes <= count && next <= lanes.last; done += kByteRansLanes) {
    for (size_t lane = 0; lane < kByteRansLanes; lane += hn::Lanes(d)) {
      next += 2 * DecodeLanes(slots, columns.data() + column + lane, lanes.state.data() + lane,
                              reinterpret_cast<const uint16_t*>(next), out + done + lane);
    }
    column += kByteRansLanes;
    while (column >= width) column -= width;
  }
  lanes.next = next;
  return done;
}

const ByteRansLoops* Loops() {
  static constexpr ByteRansLoops kLoops{DecodeSteps};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

const ByteRansLoops& ByteRansLoops::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
