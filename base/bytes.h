// Little-endian bytes in and out, and sizes as people write them.
//
// ByteWriter appends to a string. ByteReader takes fields off the front of untrusted bytes. It
// never reads past the end. After a failed read every later one fails, so a parser checks ok() once
// at the end of a group.
#ifndef KVSTOW_BASE_BYTES_H_
#define KVSTOW_BASE_BYTES_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow {

static_assert(std::endian::native == std::endian::little, "kvstow's formats are little-endian");

class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutBytes(std::span<const uint8_t> bytes) {
    out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // Writes a 16-bit length, then the bytes. `bytes` must be shorter than 64 KiB.
  void PutString16(absl::string_view bytes) {
    Put(static_cast<uint16_t>(bytes.size()));
    out_.append(bytes.data(), bytes.size());
  }
  size_t size() const { return out_.size(); }
  const std::string& bytes() const { return out_; }
  std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : rest_(bytes) {}

  // Returns the next field, or zero when the bytes ran out.
  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (const auto bytes = GetBytes(sizeof(T)); bytes.size() == sizeof(T))
      std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // Returns the next `n` bytes in place, or an empty span when fewer are left.
  std::span<const uint8_t> GetBytes(size_t n) {
    if (!ok_ || n > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto out = rest_.first(n);
    rest_ = rest_.subspan(n);
    return out;
  }
  absl::string_view GetString16() {
    const auto bytes = GetBytes(Get<uint16_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }

 private:
  std::span<const uint8_t> rest_;
  bool ok_ = true;
};

// Reads a size such as "64MiB", "30GB", "1.5TiB" or "4096". KiB, MiB, GiB and TiB are powers of
// 1024, as are a single K, M, G and T; kB, MB, GB and TB are powers of 1000. Case does not matter.
// INVALID_ARGUMENT names the text.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);

// Writes a size as "64.0 MiB": three figures, powers of 1024.
std::string FormatSize(uint64_t bytes);

}  // namespace kvstow

#endif  // KVSTOW_BASE_BYTES_H_
