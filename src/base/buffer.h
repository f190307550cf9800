#pragma once
// Owned memory, aligned to cache lines, not initialised; large ones on huge pages where the kernel grants them.

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include <sys/mman.h>

namespace nibble {

class Buffer {
 public:
  static constexpr int64_t kAlign = 64;

  Buffer() = default;
  // Throws Error(kOutOfMemory).
  explicit Buffer(int64_t bytes) : bytes_((bytes + kAlign - 1) / kAlign * kAlign) {
    if (bytes_ == 0) return;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, static_cast<size_t>(bytes_))));
    if (data_ == nullptr) throw Error(Code::kOutOfMemory, "want {} bytes of memory, found fewer", bytes_);
    want_huge_pages();
  }

  // Zeros, from pages that are not touched before they are used.
  [[nodiscard]] static Buffer zeroed(int64_t bytes) {
    Buffer buffer;
    buffer.bytes_ = bytes;
    // Large blocks come straight from the kernel; kAlign more bytes than needed leave room to align.
    buffer.data_.reset(static_cast<std::byte*>(std::calloc(1, static_cast<size_t>(bytes + kAlign))));
    if (buffer.data_ == nullptr) throw Error(Code::kOutOfMemory, "want {} bytes of memory, found fewer", bytes);
    const auto address = reinterpret_cast<uintptr_t>(buffer.data_.get());
    buffer.offset_ = static_cast<int64_t>((kAlign - address % kAlign) % kAlign);
    buffer.want_huge_pages();
    return buffer;
  }

  [[nodiscard]] int64_t bytes() const { return bytes_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_.get() + offset_);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  // Advice only: it can change nothing but speed.
  void want_huge_pages() const {
    constexpr uintptr_t kHuge = uintptr_t{2} << 20;
    const auto begin = reinterpret_cast<uintptr_t>(data_.get()), first = (begin + kHuge - 1) / kHuge * kHuge;
    const uintptr_t last = (begin + static_cast<uintptr_t>(bytes_)) / kHuge * kHuge;
    if (first < last) ::madvise(data_.get() + (first - begin), last - first, MADV_HUGEPAGE);
  }

  int64_t bytes_ = 0, offset_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

// For vectors whose elements are read 64 bytes at a time.
template <class T>
struct AlignedAllocator {
  using value_type = T;  // NOLINT(readability-identifier-naming): an allocator must call it so
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  [[nodiscard]] T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{Buffer::kAlign}));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t{Buffer::kAlign}); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};
template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace nibble
