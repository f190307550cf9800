#pragma once
// The CPU backend's inner loops: one table of functions per instruction set, chosen once, at start.

#include "backend/activations.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kv_cache.h"
#include "backend/kv_dtype.h"
#include "backend/weights.h"
#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nibble::backend::cpu {

inline constexpr int kTileRows = 32;     // most rows of weights in one multiply
inline constexpr int kTileTokens = 128;  // most tokens in one multiply: their activations stay in the second cache
inline constexpr int kLaneTokens = 16;   // tokens of one tile of int8 activations

// Bytes of one row in the array of values, and in that of scales.
[[nodiscard]] constexpr int64_t row_bytes(WeightFormat format, int64_t cols) {
  return cols / block_of(format).values * block_of(format).bytes;
}
[[nodiscard]] constexpr bool has_scale_array(WeightFormat format) { return block_of(format).scale_bytes > 0; }
[[nodiscard]] constexpr bool in_blocks(WeightFormat format) { return block_of(format).values > 1; }

// visit(std::integral_constant<int, n>()); of n above kMost, visit(kMost).
template <int kMost, class Visit>
void with_count(int n, const Visit& visit) {
  if constexpr (kMost > 1) {
    if (n < kMost) return with_count<kMost - 1>(n, visit);
  }
  visit(std::integral_constant<int, kMost>());
}
// visit(std::integral_constant<WeightFormat, format>()), for these formats.
template <WeightFormat... kFormats, class Visit>
void with_format_of(WeightFormat format, const Visit& visit) {
  static_cast<void>(((format == kFormats && (visit(std::integral_constant<WeightFormat, kFormats>()), true)) || ...));
}
template <class Visit>
void with_format(WeightFormat format, const Visit& visit) {
  using enum WeightFormat;
  with_format_of<kBf16, kF16, kF32, kMxfp4, kMxfp8, kGgmlMxfp4, kGgmlQ8>(format, visit);
}
// For the formats that int8_serves.
template <class Visit>
void with_int8_format(WeightFormat format, const Visit& visit) {
  using enum WeightFormat;
  with_format_of<kMxfp4, kGgmlMxfp4, kGgmlQ8>(format, visit);
}

// Consecutive rows of a matrix.
struct WeightRows {
  WeightFormat format = WeightFormat::kBf16;
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;  // null unless has_scale_array
  int64_t cols = 0;
  int rows = 0;

  [[nodiscard]] const uint8_t* values_of(int row) const { return values + row * row_bytes(format, cols); }
  [[nodiscard]] const uint8_t* scales_of(int row) const { return scales + row * (cols / kMxBlock); }
};

// What a multiply needs of scratch memory, aligned to 64 bytes.
inline constexpr int64_t kLeastScratch = 44 << 10;  // floats
[[nodiscard]] constexpr int64_t scratch_floats(int64_t cols) {
  return std::max(kLeastScratch, 16 * ((cols + 15) / 16 * 16 + 48));
}

// The instruction sets of the functions that were called. Those that multiply return the set that they are compiled
// for, so that this is what ran, whatever table they came from. Any thread adds.
struct CalledSets {
  std::atomic<uint32_t> bits = 0;

  static uint32_t bit(CpuIsa isa) { return 1U << static_cast<int>(isa); }
  [[nodiscard]] bool has(CpuIsa isa) const { return (bits.load(std::memory_order_relaxed) & bit(isa)) != 0; }
  void add(CpuIsa isa) {
    if (!has(isa)) bits.fetch_or(bit(isa), std::memory_order_relaxed);
  }
};

// out[t][r] = w[r] · x[t]; the sum's order depends on cols, format and kernels only.
struct MultiplyArgs {
  WeightRows w;                     // at most kTileRows
  std::span<const float* const> x;  // at most kTileTokens; cols floats each, in the order that arrange gives
  float* out;                       // [tokens, kTileRows]
  float* scratch;                   // scratch_floats(w.cols)
  // Where the rows that are multiplied after these begin, of the same format and width, for prefetching; null: nowhere.
  const uint8_t* next = nullptr;
};

// A product whose activations have a form of their own.
struct MultiplyPreparedArgs {
  WeightRows w;
  std::span<const std::byte* const> x;  // see TokenTiles and Int8Kernels
  int tokens;
  float* out;                     // [tokens, kTileRows]
  float* scratch;                 // scratch_floats(w.cols)
  const uint8_t* next = nullptr;  // as above
};

// Some blocks of kMxBlock columns of a tile.
struct PrepareTileArgs {
  WeightFormat format;
  std::span<const float* const> x;  // up to kLaneTokens tokens of cols floats; those missing count as zero
  int64_t cols;
  int64_t first, last;  // of the blocks
  std::byte* out;       // the tile
};

// Products of several tokens, whose activations come in tiles of kLaneTokens.
struct TokenTiles {
  std::string_view name;                                // the instructions
  bool (*serves)(WeightFormat format, int64_t tokens);  // whether they are faster than rows
  int64_t (*size)(int64_t cols);                        // bytes of a tile, a multiple of 64
  void (*prepare)(const PrepareTileArgs& args);
  CpuIsa (*multiply)(const MultiplyPreparedArgs& args);  // x: one tile per kLaneTokens tokens
};

// A page of kPageTokens × kPageTokens bf16 with its rows in pairs: dword n of pair p is row 2p's value n and row
// 2p + 1's.
struct PairRowsArgs {
  const void* page;
  int from, to;  // the rows; others become zero
  void* out;     // aligned to 64 bytes
};
inline constexpr int kPairedPages = 8;  // most of one call
// Up to kLaneTokens rows times such pages.
struct PairedArgs {
  const float* a;
  int64_t a_stride;
  int rows;
  std::span<const void* const> pages;
  float* c;
  int64_t c_stride;
};
// Attention in bf16, of heads as wide as a page is long.
struct PairedProducts {
  void (*pair_rows)(const PairRowsArgs& args);
  void (*scores)(const PairedArgs& args);  // c[r][p, n] = a[r] · column n of page p; c has room for kLaneTokens rows
  void (*values)(const PairedArgs& args);  // c[r] = sum over p of a[r][p] · page p
};

// Activations rounded to 8 bits per block of 32; sums within a block are exact.
struct Int8Kernels {
  int64_t (*row_size)(int64_t cols) = nullptr;  // bytes of a token's prepared row, a multiple of 64
  // For products of x with up to `tokens` - 1 others.
  void (*prepare_row)(WeightFormat format, std::span<const float> x, int64_t tokens, std::byte* out) = nullptr;
  CpuIsa (*multiply_rows)(const MultiplyPreparedArgs& args) = nullptr;  // x: one prepared row per token
  int alike_tokens = 1;                      // products of up to so many tokens give each the bits that it gets alone
  std::array<const TokenTiles*, 2> tiles{};  // the first that serves; null: none
  const PairedProducts* paired = nullptr;    // null: none

  // What multiplies so many tokens; null: rows.
  [[nodiscard]] const TokenTiles* tiles_for(WeightFormat format, int64_t tokens) const {
    for (const TokenTiles* each : tiles)
      if (each != nullptr && each->serves(format, tokens)) return each;
    return nullptr;
  }
};
// Block formats only.
[[nodiscard]] constexpr bool int8_serves(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kGgmlMxfp4 || format == WeightFormat::kGgmlQ8;
}

// A screen's product (screen.h): a tile of rows in codes of 6 bits times a few tokens, whose values have two digits.
//   codes = 192 bytes for each kScreenColumns columns: planes of 64 bytes, byte 4r + c of plane j being row r, column
//           4j + c. The low 6 bits are its code, and the top 2 of planes 0, 1 and 2 are bits 0-1, 2-3 and 4-5 of plane
//           3's
inline constexpr int kScreenRows = 16, kScreenColumns = 16, kScreenPlane = 64;
inline constexpr int kScreenTokens = 4;  // most of one product
struct ScreenArgs {
  const uint8_t* codes;
  int64_t cols;
  const int8_t* x;  // [cols / 4, tokens, 2, 4], the high digits first; within ±64, the high ones within ±63
  int tokens;
  int32_t* sums;  // [tokens, 2, kScreenRows], aligned to 64 bytes
};

// c[r][n] += sum over k of a[r][k] * b[k][n], k in rising order: attention's products.
struct AccumulateArgs {
  const float* a;
  int64_t a_stride;
  int rows;
  int from = 0, to;  // of k
  const void* b;     // [k, b_stride] bf16 or float
  int64_t b_stride;
  int64_t cols;  // of b and c that are computed
  bool b_is_bf16;
  float* c;
  int64_t c_stride;
  bool from_zero = false;      // c is written, not added to
  const void* next = nullptr;  // what will be b afterwards, for prefetching; null: nothing
};

// u[i] = glu / (1 + exp(-1.702 glu)) * (linear + 1); glu = min(gate, limit), linear = clamp(up, ±limit). In place: u
// may be gate.
struct SwigluArgs {
  const float* gate;
  const float* up;
  float limit;
  int64_t n;
  float* out;
};

struct Kernels {
  std::string_view name;  // "avx512", "avx2", …
  // out[cols] of the one row of w.
  void (*decode)(const WeightRows& w, float* out) = nullptr;
  // Whether multiply wants x of this format rearranged, and the rearranging.
  bool (*arranges)(WeightFormat format) = nullptr;
  void (*arrange)(WeightFormat format, std::span<const float> x, float* out) = nullptr;
  CpuIsa (*multiply)(const MultiplyArgs& args) = nullptr;
  std::array<void (*)(const WidenArgs& args), kKvDtypes> widen{};  // by KvDtype; null: by KvFormat's plain loop
  [[nodiscard]] auto widening(const KvFormat& format) const {
    const auto type = static_cast<size_t>(format.type.dtype);
    return type < widen.size() && widen[type] != nullptr ? widen[type] : format.widen;
  }
  CpuIsa (*accumulate)(const AccumulateArgs& args) = nullptr;
  // x[i] *= factor; returns the largest, or -infinity.
  float (*scale_max)(float factor, std::span<float> x) = nullptr;
  // x[i] = exp(x[i] - top); returns the sum.
  float (*exp_sum)(float top, std::span<float> x) = nullptr;
  void (*swiglu)(const SwigluArgs& args) = nullptr;
  // For measuring the machine: the sum of `words` words, a multiple of 256, and multiply-adds in registers.
  uint64_t (*read_all)(const uint64_t* data, int64_t words) = nullptr;
  struct Peak {
    std::string_view set;  // of instructions: "AVX2"
    double flops_per_round = 0;
    float (*run)(int64_t rounds) = nullptr;  // the result only keeps the work from being dropped
  } peak{};
  const Int8Kernels* int8 = nullptr;                 // null: this CPU lacks the instructions
  void (*screen)(const ScreenArgs& args) = nullptr;  // null as well
};

struct IsaKernels {
  CpuIsa isa;
  Kernels kernels;
};
// The portable tables of this build that this CPU runs, best first; of AVX2 or more without float products.
[[nodiscard]] std::vector<IsaKernels> portable_kernels();
// Such a table with them, in AVX2's intrinsics.
[[nodiscard]] Kernels with_avx2_floats(Kernels portable);
// A portable table of AVX2 or more with int8 products in 256 bits.
[[nodiscard]] Kernels with_avx2(Kernels portable);
// int8 products by AVX-VNNI; as it was where this CPU has none.
[[nodiscard]] Kernels with_avx_vnni(Kernels portable);
// The portable AVX-512 table with what is faster in intrinsics; as it was where this CPU lacks VBMI or VNNI.
[[nodiscard]] Kernels with_avx512(Kernels portable);
// with_avx512's table with products of many tokens in AMX's tiles; as it was where this CPU, or Linux, has none.
[[nodiscard]] Kernels with_amx(Kernels avx512);

// A portable table of Arm with int8 products by SDOT, and by SMMLA as well; as it was where this CPU has none.
[[nodiscard]] Kernels with_dotprod(Kernels portable);
[[nodiscard]] Kernels with_i8mm(Kernels portable);

// All that this CPU runs, best first.
[[nodiscard]] std::vector<IsaKernels> kernels_here();

// What `isa` names, which for int8 activations has kernels for them. Throws Error(kUnsupported) saying what this CPU
// has.
[[nodiscard]] Kernels kernels_for(CpuIsa isa, Activations activations = Activations::kF32);

}  // namespace nibble::backend::cpu
