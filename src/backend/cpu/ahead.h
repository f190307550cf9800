#pragma once
// Fetching what will be read next; for files of intrinsics.

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"

#include <cstdint>
#include <type_traits>

namespace nibble::backend::cpu {

// Fetches what will be read after the rows at hand, line by line in the order of reading: across the ends of tiles,
// which lie anywhere, no hardware does it.
class Ahead {
 public:
  // How many rows later begins what groups of `count` rows of w fetch.
  static int rows_ahead(const WeightRows& w, int count) {
    // Zen 5 wants 16 KB and more on their way to the first cache: a tenth to a fifth faster than 12 KB to the second,
    // which a Xeon of 2023 reads a tenth faster (2 threads, 40 to 60 and 20 GB/s).
    const int64_t group = count * row_bytes(w.format, w.cols), wanted = is_near() ? 16384 : 12288 - group + 1;
    int groups = 1;
    while (groups < 4 && groups * group < wanted) ++groups;
    return groups * count;
  }
  // From a row on, which may lie after w's last; `next`: MultiplyArgs'.
  Ahead(const WeightRows& w, const uint8_t* next, int row)
      : base_(row < w.rows      ? w.values_of(row)
              : next == nullptr ? w.values
                                : next + (row - w.rows) * row_bytes(w.format, w.cols)),
        near_(is_near()) {}
  // All up to `bytes` from the beginning, into the second cache.
  void fetch(int64_t bytes) {
    for (; at_ < bytes; at_ += 64) __builtin_prefetch(base_ + at_, 0, 2);
  }
  // The next kBytes, without the loop over lines, which would be a fifth of the instructions of a token's product.
  // kFloats: never into the first cache, which the tokens' floats fill.
  template <int kBytes, bool kFloats>
  __attribute__((always_inline)) void fetch_next() {
    const auto each = [&](auto locality) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(base_ + at_ + i, 0, locality());
    };
    if (!kFloats && near_)
      each(std::integral_constant<int, 3>());
    else
      each(std::integral_constant<int, 2>());
    at_ += kBytes;
  }
  // One line of the next kBytes, which are about as many: what it leaves out now and then the hardware fetches.
  template <int kBytes, bool kNear>
  __attribute__((always_inline)) void fetch_line() {
    __builtin_prefetch(base_ + at_, 0, kNear ? 3 : 2);
    at_ += kBytes;
  }
  // `bytes` more than before.
  void advance(int64_t bytes) { fetch(wanted_ += bytes); }

  // Whether this processor wants lines in the first cache.
  static bool is_near() { return wants_first_cache(); }

 private:
  const uint8_t* base_;
  int64_t at_ = 0, wanted_ = 0;
  bool near_;
};

}  // namespace nibble::backend::cpu
