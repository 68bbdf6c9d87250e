// Safetensors files: named tensors behind a JSON header. Format:
// https://github.com/huggingface/safetensors (a u64 header length, the header, then the data).
//
// The reader maps the file and checks everything before it hands out a byte: lengths, offsets,
// shapes against sizes, overlaps. It fails with INVALID_ARGUMENT, which names the file, the tensor
// and the field. Objects are move-only. Threads must not share an object while one writes it.
#ifndef KVSTOW_CLIENT_CASE_SAFETENSORS_H_
#define KVSTOW_CLIENT_CASE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/case/mapped_file.h"

namespace kvstow {

struct Tensor {
  std::string dtype;  // as the file says: "F16", "BF16", "F32", "I32", "U8", ...
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // in the data part
  uint64_t bytes = 0;
};

using TensorMetadata = std::map<std::string, std::string>;

class SafetensorsReader {
 public:
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const TensorMetadata& metadata() const { return metadata_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  // Fails with NOT_FOUND, which names file and tensor, when there is no such tensor.
  absl::StatusOr<Tensor> Find(const std::string& name) const;
  std::span<const uint8_t> Data(const Tensor& tensor) const {
    return file_.bytes().subspan(data_start_ + tensor.offset, tensor.bytes);
  }

 private:
  SafetensorsReader(std::string path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status ParseHeader();
  absl::Status CheckPlaces() const;

  std::string path_;
  MappedFile file_;
  uint64_t data_start_ = 0;
  TensorMetadata metadata_;
  std::map<std::string, Tensor> tensors_;
};

// A tensor to write. The caller fills in its bytes after Create().
struct NewTensor {
  std::string name, dtype;
  std::vector<uint64_t> shape;
};

class SafetensorsWriter {
 public:
  // Places tensors in the given order. The whole file appears under its name with Commit().
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path,
                                                  std::span<const NewTensor> tensors,
                                                  const TensorMetadata& metadata);
  // Returns the bytes of tensors[i].
  std::span<uint8_t> Data(size_t i) { return file_.writable().subspan(starts_[i], sizes_[i]); }
  absl::Status Commit() { return file_.Commit(); }

 private:
  explicit SafetensorsWriter(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<uint64_t> starts_, sizes_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CASE_SAFETENSORS_H_
