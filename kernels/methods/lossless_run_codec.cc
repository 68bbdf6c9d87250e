#include "kernels/methods/lossless_run_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/entropy/byte_classes.h"
#include "kernels/entropy/byte_rans.h"
#include "kernels/transform/byte_planes.h"

namespace kvstow {
namespace {

constexpr size_t kMaxPlanes = 4;
constexpr size_t kValuesPerStream = 1 << 15;  // at least, where a run has as many
constexpr size_t kValuesPerClass = 1 << 14;   // fewer do not pay for a table

enum class Mode : uint8_t { kPlain = 0, kConstant = 1, kCoded = 2 };

// How the values of a run lie: slabs of `tokens` rows, their widths in the order of a page.
struct RunShape {
  size_t tokens = 0, layers = 0;
  std::vector<size_t> widths;  // of a layer's slabs: K, and V if there is one
  size_t ValuesOfLayer() const {
    size_t width = 0;
    for (const size_t w : widths) width += w;
    return tokens * width;
  }
  size_t values() const { return layers * ValuesOfLayer(); }
  size_t columns() const { return values() / tokens; }
  size_t LayersPerStream() const {
    return std::clamp<size_t>(kValuesPerStream / ValuesOfLayer(), 1, layers);
  }
  size_t streams() const { return (layers + LayersPerStream() - 1) / LayersPerStream(); }
};

RunShape ShapeOf(const KvSpec& spec, const Run& run) {
  RunShape shape{run.tokens, run.layers.count, {}};
  for (const size_t dim : {spec.head_dim_k, spec.head_dim_v}) {
    if (dim > 0) shape.widths.push_back(dim * spec.kv_heads);
  }
  return shape;
}

// Four bits a column, the even column in the low half; none where there is one class.
size_t ClassesBytes(size_t columns, size_t tables) { return tables < 2 ? 0 : (columns + 1) / 2; }

void PutCoded(const RunShape& shape, const ByteClasses& classes, std::span<const uint8_t> plane,
              std::string& out) {
  out.push_back(static_cast<char>(Mode::kCoded));
  out.push_back(static_cast<char>(classes.tables.size()));
  std::string packed(ClassesBytes(shape.columns(), classes.tables.size()), '\0');
  for (size_t c = 0; c < classes.of.size() && !packed.empty(); ++c)
    packed[c / 2] = static_cast<char>(packed[c / 2] | classes.of[c] << (c % 2 * 4));
  out += packed;
  for (const ByteFrequencies& table : classes.tables) WriteFrequencies(table, out);
  std::string streams;
  size_t column = 0, value = 0;
  for (size_t first = 0; first < shape.layers; first += shape.LayersPerStream()) {
    const size_t n = std::min(shape.LayersPerStream(), shape.layers - first);
    std::vector<ByteRansBlock> blocks;
    for (size_t i = 0; i < n; ++i) {
      for (const size_t width : shape.widths) {
        blocks.push_back({std::span(classes.of).subspan(column, width), shape.tokens});
        column += width;
      }
    }
    const size_t count = n * shape.ValuesOfLayer(), before = streams.size();
    ByteRansEncode(classes.tables, blocks, plane.subspan(value, count), streams);
    value += count;
    ByteWriter size;
    size.Put(static_cast<uint32_t>(streams.size() - before));
    out += size.bytes();
  }
  out += streams;
}

// Bytes of what PutCoded appends, but for rounding of the states.
size_t CodedBytes(const RunShape& shape, const ByteClasses& classes) {
  std::string tables;
  for (const ByteFrequencies& table : classes.tables) WriteFrequencies(table, tables);
  return 2 + ClassesBytes(shape.columns(), classes.tables.size()) + tables.size() +
         shape.streams() * 4 * (1 + kByteRansLanes) + classes.bits / 8;
}

void PutPlane(const RunShape& shape, std::span<const uint8_t> plane, std::string& out) {
  const auto differs = [&](uint8_t byte) { return byte != plane[0]; };
  if (std::none_of(plane.begin(), plane.end(), differs)) {
    out.push_back(static_cast<char>(Mode::kConstant));
    out.push_back(static_cast<char>(plane[0]));
    return;
  }
  // One table for all says whether there is anything to gain: mantissas are done with here.
  const ByteClasses one = OneClass(plane, shape.columns());
  const size_t least = CodedBytes(shape, one);
  const size_t before = out.size();
  if (least < plane.size() - plane.size() / 64) {
    std::vector<size_t> widths;
    for (size_t i = 0; i < shape.layers; ++i)
      widths.insert(widths.end(), shape.widths.begin(), shape.widths.end());
    const size_t most = std::clamp<size_t>(plane.size() / kValuesPerClass, 1, kMaxByteClasses);
    const ByteClasses several = ClassifyColumns(plane, widths, shape.tokens, most);
    PutCoded(shape, CodedBytes(shape, several) < least ? several : one, plane, out);
    if (out.size() - before <= plane.size()) return;
    out.resize(before);
  }
  out.push_back(static_cast<char>(Mode::kPlain));
  out.append(reinterpret_cast<const char*>(plane.data()), plane.size());
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("lossless run: ", what));
}

// A plane of a body, ready to give its bytes slab after slab.
class PlaneReader {
 public:
  // Checks the plane's lengths against `shape` and takes it off `reader`.
  static absl::StatusOr<PlaneReader> Open(const RunShape& shape, ByteReader& reader) {
    PlaneReader plane;
    const auto mode = reader.Get<uint8_t>();
    if (mode == static_cast<uint8_t>(Mode::kCoded)) {
      KVSTOW_RETURN_IF_ERROR(plane.OpenCoded(shape, reader));
    } else if (mode == static_cast<uint8_t>(Mode::kConstant)) {
      plane.constant_ = reader.Get<uint8_t>();
      plane.mode_ = Mode::kConstant;
    } else if (mode == static_cast<uint8_t>(Mode::kPlain)) {
      plane.bytes_ = reader.GetBytes(shape.values());
    } else {
      return Damaged(absl::StrCat("a plane of unknown mode ", mode));
    }
    if (!reader.ok()) return Damaged("cut");
    return plane;
  }

  // Streams are read from their beginning: one begins here.
  void BeginStream(size_t stream) {
    if (mode_ == Mode::kCoded) decoder_ = std::make_unique<ByteRansDecoder>(streams_[stream]);
  }
  // The `count` bytes from value `first` on, of the slab whose columns begin at `column`: in place
  // or in `buffer`. Null when the stream is cut.
  const uint8_t* Slab(size_t first, size_t column, size_t width, size_t count,
                      std::vector<uint8_t>& buffer) {
    if (mode_ == Mode::kPlain) return bytes_.data() + first;
    buffer.resize(count);
    if (mode_ == Mode::kConstant) {
      std::memset(buffer.data(), constant_, count);
      return buffer.data();
    }
    const std::vector<uint32_t> columns =
        ByteRansColumns(std::span(classes_).subspan(column, width));
    return decoder_->Decode(slots_, columns, count, buffer.data()) ? buffer.data() : nullptr;
  }
  bool StreamEndsWell() const { return mode_ != Mode::kCoded || decoder_->AtEnd(); }

 private:
  absl::Status OpenCoded(const RunShape& shape, ByteReader& reader) {
    mode_ = Mode::kCoded;
    const size_t count = reader.Get<uint8_t>();
    if (count < 1 || count > kMaxByteClasses) return Damaged("a bad number of tables");
    const auto packed = reader.GetBytes(ClassesBytes(shape.columns(), count));
    if (!reader.ok()) return Damaged("cut");
    classes_.resize(shape.columns());
    for (size_t c = 0; c < classes_.size() && !packed.empty(); ++c) {
      classes_[c] = packed[c / 2] >> (c % 2 * 4) & 15;
      if (classes_[c] >= count) return Damaged("a column of a class without a table");
    }
    std::vector<ByteFrequencies> tables;
    for (size_t k = 0; k < count; ++k) {
      KVSTOW_ASSIGN_OR_RETURN(tables.emplace_back(), ReadFrequencies(reader));
    }
    slots_ = ByteRansSlots(tables);
    std::vector<uint32_t> sizes(shape.streams());
    for (uint32_t& size : sizes) size = reader.Get<uint32_t>();
    for (const uint32_t size : sizes) streams_.push_back(reader.GetBytes(size));
    return absl::OkStatus();
  }

  Mode mode_ = Mode::kPlain;
  uint8_t constant_ = 0;
  std::span<const uint8_t> bytes_;
  std::vector<uint8_t> classes_;
  std::vector<uint32_t> slots_;
  std::vector<std::span<const uint8_t>> streams_;
  std::unique_ptr<ByteRansDecoder> decoder_;
};

class LosslessRunCodec final : public RunCodec {
 public:
  explicit LosslessRunCodec(const KvSpec& spec) : spec_(spec) {}

  bool exact() const override { return true; }
  uint32_t levels() const override { return 1; }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    const RunShape shape = ShapeOf(spec_, run);
    const size_t values = shape.values();
    std::vector<uint8_t> bytes(raw.size());
    std::array<uint8_t*, kMaxPlanes> planes{};
    for (size_t p = 0; p < Planes(); ++p) planes[p] = bytes.data() + p * values;
    SplitBytes(spec_.dtype, raw.data(), values, std::span(planes).first(Planes()));
    std::string body;
    for (size_t p = 0; p < Planes(); ++p) PutPlane(shape, {planes[p], values}, body);
    const auto slabs = static_cast<double>(shape.layers * shape.widths.size());
    std::vector<EncodedLevel> out;
    out.push_back({SharedBytes::Take(std::move(body)), run.tokens * slabs});
    return out;
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    if (bodies.size() != 1) return Damaged(absl::StrCat(bodies.size(), " levels, not 1"));
    const RunShape shape = ShapeOf(spec_, run);
    ByteReader reader(bodies[0].span());
    std::vector<PlaneReader> planes;
    for (size_t p = 0; p < Planes(); ++p) {
      KVSTOW_ASSIGN_OR_RETURN(auto plane, PlaneReader::Open(shape, reader));
      planes.push_back(std::move(plane));
    }
    if (reader.remaining() > 0) return Damaged("longer than its planes");
    const size_t first = wanted.first - run.layers.first, each = shape.LayersPerStream();
    for (size_t stream = first / each; stream * each < first + wanted.count; ++stream) {
      KVSTOW_RETURN_IF_ERROR(DecodeStream(shape, stream, planes, first, wanted.count, raw));
    }
    return absl::OkStatus();
  }

 private:
  size_t Planes() const { return DTypeBytes(spec_.dtype); }

  // All layers of a stream; those within [first, first + count) go to `raw`, which begins there.
  absl::Status DecodeStream(const RunShape& shape, size_t stream, std::span<PlaneReader> planes,
                            size_t first, size_t count, std::span<uint8_t> raw) const {
    const size_t begin = stream * shape.LayersPerStream();
    const size_t end = std::min(begin + shape.LayersPerStream(), shape.layers);
    size_t value = begin * shape.ValuesOfLayer(), column = value / shape.tokens;
    std::array<std::vector<uint8_t>, kMaxPlanes> buffers;
    std::array<const uint8_t*, kMaxPlanes> bytes{};
    for (PlaneReader& plane : planes) plane.BeginStream(stream);
    for (size_t layer = begin; layer < end; ++layer) {
      const bool is_wanted = layer >= first && layer < first + count;
      for (const size_t width : shape.widths) {
        const size_t values = shape.tokens * width;
        for (size_t p = 0; p < planes.size(); ++p) {
          bytes[p] = planes[p].Slab(value, column, width, values, buffers[p]);
          if (bytes[p] == nullptr) return Damaged("a stream is cut");
        }
        if (is_wanted) {
          MergeBytes(spec_.dtype, std::span(bytes).first(planes.size()), values,
                     raw.data() + (value - first * shape.ValuesOfLayer()) * planes.size());
        }
        value += values;
        column += width;
      }
    }
    for (const PlaneReader& plane : planes) {
      if (!plane.StreamEndsWell()) return Damaged("a stream does not end well");
    }
    return absl::OkStatus();
  }

  const KvSpec spec_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeLossless(const OpArguments& arguments,
                                                             const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
  return std::make_unique<LosslessRunCodec>(spec);
}

}  // namespace kvstow
