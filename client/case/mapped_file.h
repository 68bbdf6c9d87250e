// A file in memory: an existing one to read, or a new one of a given size that moves into place
// when it is whole.
//
// Move-only; a view is valid while its object lives. When another process cuts a mapped file short,
// SIGBUS ends the program.
#ifndef KVSTOW_CLIENT_CASE_MAPPED_FILE_H_
#define KVSTOW_CLIENT_CASE_MAPPED_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace kvstow {

class MappedFile {
 public:
  // Fails with NOT_FOUND and so on, with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  // Makes a file beside `path`, `bytes` long and zero, with the mode that the umask gives. Commit()
  // renames it to `path`. Without Commit(), the destructor removes it.
  static absl::StatusOr<MappedFile> Create(const std::string& path, uint64_t bytes);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  std::span<uint8_t> writable() { return {data_, writable_ ? size_ : 0}; }
  absl::Status Commit();

 private:
  MappedFile() = default;

  std::string path_, temporary_;  // temporary_: "" once the file is in place
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  bool writable_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CASE_MAPPED_FILE_H_
