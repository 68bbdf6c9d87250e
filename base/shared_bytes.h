// SharedBytes: a read-only view of bytes, together with the owner that keeps them alive.
//
// Copying it copies a pointer, never the bytes: a segment travels from tier to wire as SharedBytes,
// and its owner (an arena block, a RocksDB value, a string) goes when the last copy goes.
// Thread-safe as std::shared_ptr is. Shared bytes never change.
#ifndef KVSTOW_BASE_SHARED_BYTES_H_
#define KVSTOW_BASE_SHARED_BYTES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvstow {

class SharedBytes {
 public:
  SharedBytes() = default;
  // `owner` keeps `view` alive.
  SharedBytes(std::shared_ptr<const void> owner, std::span<const uint8_t> view)
      : owner_(std::move(owner)), view_(view) {}

  static SharedBytes CopyOf(std::span<const uint8_t> bytes);
  static SharedBytes Take(std::string bytes);
  static SharedBytes Take(std::vector<uint8_t> bytes);

  const uint8_t* data() const { return view_.data(); }
  size_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  std::span<const uint8_t> span() const { return view_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // Returns the part [offset, offset + length), which shares the owner. The range must lie within
  // size().
  SharedBytes Slice(size_t offset, size_t length) const {
    return {owner_, view_.subspan(offset, length)};
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const uint8_t> view_;
};

// A block to fill before it is shared. Its bytes are not initialised.
class ByteBlock {
 public:
  ByteBlock() = default;
  explicit ByteBlock(size_t size)
      : block_(std::make_shared_for_overwrite<uint8_t[]>(size)), size_(size) {}
  uint8_t* data() { return block_.get(); }
  const uint8_t* data() const { return block_.get(); }
  size_t size() const { return size_; }
  std::span<uint8_t> span() { return {block_.get(), size_}; }
  // Shares the block: its bytes are read-only from now on.
  SharedBytes Share() && {
    const std::span<const uint8_t> view(block_.get(), size_);
    return {std::move(block_), view};
  }

 private:
  std::shared_ptr<uint8_t[]> block_;
  size_t size_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_SHARED_BYTES_H_
