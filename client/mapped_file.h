// A file in memory: read as it is, or made at a given size and moved into place when it is whole.
//
// Move-only; a view is valid while its object lives. A file that another process cuts short while
// it is mapped ends the program with SIGBUS.
#ifndef KVSTOW_CLIENT_MAPPED_FILE_H_
#define KVSTOW_CLIENT_MAPPED_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace kvstow {

class MappedFile {
 public:
  // NOT_FOUND and so on, with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  // A new file beside `path`, `bytes` long and zero. Commit() makes it `path`; without it the file
  // goes with the object.
  static absl::StatusOr<MappedFile> Create(const std::string& path, uint64_t bytes);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  std::span<uint8_t> writable() { return {data_, writable_ ? size_ : 0}; }
  absl::Status Commit();

 private:
  MappedFile() = default;

  std::string path_, temporary_;  // temporary_: "" once it is in place
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  bool writable_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_MAPPED_FILE_H_
