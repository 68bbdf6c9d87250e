#include "client/case/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format
constexpr size_t kMaxDims = 8;

// Returns the bytes of an element; 0 for no such type.
uint64_t ElementBytes(absl::string_view dtype) {
  static constexpr std::pair<absl::string_view, uint64_t> kTypes[] = {
      {"F16", 2},     {"BF16", 2},    {"F32", 4}, {"I32", 4}, {"U8", 1},
      {"I8", 1},      {"BOOL", 1},    {"I16", 2}, {"U16", 2}, {"U32", 4},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F64", 8}, {"I64", 8}, {"U64", 8}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// Returns the bytes of a tensor; nothing when they do not fit into 64 bits.
std::optional<uint64_t> BytesOf(absl::string_view dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = ElementBytes(dtype);
  for (const uint64_t n : shape) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::Status Malformed(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", what, "; it is no whole safetensors file"));
}

absl::StatusOr<std::vector<uint64_t>> Numbers(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_array() || it->size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is not a list of at most ", kMaxDims, " numbers"));
  }
  std::vector<uint64_t> out;
  for (const Json& n : *it) {
    if (!n.is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat(field, " has ", n.dump(), " in it"));
    }
    out.push_back(n.get<uint64_t>());
  }
  return out;
}

absl::StatusOr<Tensor> ParseTensor(const Json& object, uint64_t data_bytes) {
  if (!object.is_object()) return absl::InvalidArgumentError("is not an object");
  Tensor tensor;
  const auto dtype = object.find("dtype");
  if (dtype == object.end() || !dtype->is_string()) {
    return absl::InvalidArgumentError("dtype is missing");
  }
  tensor.dtype = dtype->get<std::string>();
  if (ElementBytes(tensor.dtype) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", tensor.dtype, " is not known"));
  }
  KVSTOW_ASSIGN_OR_RETURN(tensor.shape, Numbers(object, "shape"));
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<uint64_t> place, Numbers(object, "data_offsets"));
  if (place.size() != 2 || place[0] > place[1] || place[1] > data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets do not lie within the ", data_bytes, " bytes of data"));
  }
  tensor.offset = place[0];
  tensor.bytes = place[1] - place[0];
  const std::optional<uint64_t> bytes = BytesOf(tensor.dtype, tensor.shape);
  if (bytes != tensor.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shape and dtype do not make the ", tensor.bytes,
                                                   " bytes that data_offsets say"));
  }
  return tensor;
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  KVSTOW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  SafetensorsReader reader(path, std::move(file));
  KVSTOW_RETURN_IF_ERROR(reader.ParseHeader());
  KVSTOW_RETURN_IF_ERROR(reader.CheckPlaces());
  return reader;
}

absl::Status SafetensorsReader::ParseHeader() {
  ByteReader in(file_.bytes());
  const uint64_t header_bytes = in.Get<uint64_t>();
  if (!in.ok()) return Malformed(path_, "it is shorter than 8 bytes");
  if (header_bytes > kMaxHeaderBytes || header_bytes > in.remaining()) {
    return Malformed(path_, absl::StrCat("the header says ", header_bytes, " bytes, ",
                                         in.remaining(), " are there"));
  }
  const std::span<const uint8_t> text = in.GetBytes(header_bytes);
  data_start_ = sizeof(uint64_t) + header_bytes;
  const Json header = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Malformed(path_, "the header is not a JSON object");
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      absl::StatusOr<Tensor> tensor = ParseTensor(value, in.remaining());
      if (!tensor.ok()) {
        return Malformed(path_, absl::StrCat("tensor ", name, ": ", tensor.status().message()));
      }
      tensors_[name] = *std::move(tensor);
      continue;
    }
    if (!value.is_object()) return Malformed(path_, "__metadata__ is not an object");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) {
        return Malformed(path_, absl::StrCat("__metadata__: ", key, " is not a string"));
      }
      metadata_[key] = text_value.get<std::string>();
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::CheckPlaces() const {
  std::vector<std::pair<const Tensor*, const std::string*>> order;
  for (const auto& [name, tensor] : tensors_) order.emplace_back(&tensor, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->offset, a.first->bytes) < std::pair(b.first->offset, b.first->bytes);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i].first->offset < order[i - 1].first->offset + order[i - 1].first->bytes) {
      return Malformed(path_, absl::StrCat("tensor ", *order[i].second, ": data_offsets overlap ",
                                           *order[i - 1].second));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> SafetensorsReader::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": there is no tensor ", name));
  }
  return it->second;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                            std::span<const NewTensor> tensors,
                                                            const TensorMetadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<uint64_t> starts, sizes;
  uint64_t end = 0;
  for (const NewTensor& t : tensors) {
    const std::optional<uint64_t> bytes = BytesOf(t.dtype, t.shape);
    uint64_t next = 0;
    if (!bytes || ElementBytes(t.dtype) == 0 || __builtin_add_overflow(end, *bytes, &next)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor ", t.name, ": cannot write dtype ", t.dtype, " with this shape"));
    }
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {end, next}}};
    starts.push_back(end);
    sizes.push_back(*bytes);
    end = next;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const uint64_t header_bytes = text.size(), data_start = sizeof(header_bytes) + text.size();
  KVSTOW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Create(path, data_start + end));
  std::memcpy(file.writable().data(), &header_bytes, sizeof(header_bytes));
  std::memcpy(file.writable().data() + sizeof(header_bytes), text.data(), text.size());
  SafetensorsWriter writer(std::move(file));
  for (uint64_t& start : starts) start += data_start;
  writer.starts_ = std::move(starts);
  writer.sizes_ = std::move(sizes);
  return writer;
}

}  // namespace kvstow
