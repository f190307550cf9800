// int8 products in 256 bits, and their tables: AVX2's and AVX-VNNI's.
#include "backend/cpu/avx2_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu {
namespace avx2 {

// int8 products of few tokens in 256 bits: a row of weights goes by in the order of its bytes.

inline constexpr int kRows = 4;       // of weights whose sums are stored together
inline constexpr int kRowTokens = 3;  // most tokens that are

// Weights of a chunk as they lie, and each dword's scale once a chunk's two vectors are merged(). A scale's byte
// becomes the exponent of a float: so 2^-127 becomes 0, which changes less than what rounding to 8 bits does, and NaN
// becomes infinity.
template <class Form>
struct RawChunk {
  __m256i values[Form::kRaws];
  __m256 scale;
};

// kWhole: or only the chunk's first `count` blocks are there.
template <WeightFormat kFormat, class Form, bool kWhole>
__attribute__((always_inline)) inline RawChunk<Form> load_chunk(const uint8_t* values, const uint8_t* scales,
                                                                int64_t count) {
  if constexpr (kFormat == WeightFormat::kGgmlQ8) {
    int16_t half = 0;
    std::memcpy(&half, values, sizeof half);
    return {{load(values + 2)}, _mm256_cvtph_ps(_mm_set1_epi16(half))};
  } else {
    constexpr bool kGgml = kFormat == WeightFormat::kGgmlMxfp4;
    constexpr int64_t kBlock = kGgml ? 17 : 16, kFirst = kGgml ? 1 : 0;
    RawChunk<Form> out;
    const auto block = [&](int64_t i) __attribute__((always_inline)) {
      return kWhole || i < count ? load_half(values + i * kBlock + kFirst) : _mm_setzero_si128();
    };
    const auto two = [&](int64_t i) __attribute__((always_inline)) {
      if constexpr (kWhole && !kGgml) return load(values + i * kBlock);
      return _mm256_inserti128_si256(_mm256_castsi128_si256(block(i)), block(i + 1), 1);
    };
    out.values[0] = two(0);
    out.values[1] = two(2);
    __m256i bits;
    if constexpr (kWhole && kGgml) {  // with the bytes after them
      const auto at = [&](int64_t i) __attribute__((always_inline)) { return broadcast_dword(values + i * kBlock); };
      bits = _mm256_blend_epi32(_mm256_blend_epi32(at(0), at(2), 0x0c), _mm256_blend_epi32(at(1), at(3), 0xc0), 0xf0);
      bits = _mm256_srli_epi32(_mm256_slli_epi32(bits, 24), 1);
    } else {
      alignas(4) std::array<uint8_t, 4> some{};
      for (size_t i = 0; !kWhole && i < some.size(); ++i)
        if (static_cast<int64_t>(i) < count) some[i] = kGgml ? values[i * kBlock] : scales[i];
      // Into byte 2 of dwords: of blocks 0 and 2, then 1 and 3, twice each.
      const __m256i order = _mm256_setr_epi8(-1, -1, 0, -1, -1, -1, 0, -1, -1, -1, 2, -1, -1, -1, 2, -1,  //
                                             -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 3, -1, -1, -1, 3, -1);
      bits = _mm256_slli_epi32(_mm256_shuffle_epi8(broadcast_dword(kWhole ? scales : some.data()), order), 7);
    }
    out.scale = _mm256_castsi256_ps(bits);
    return out;
  }
}

// The sums of blocks 0 and 1, and of 2 and 3: two dwords of each block, in Chunk's order.
template <class Form>
inline __m256i merged(__m256i first, __m256i second) {
  const __m256i outer = _mm256_blend_epi32(first, second, 0b11001100);  // not two shuffles: for those are fewer ports
  const __m256d inner = _mm256_shuffle_pd(_mm256_castsi256_pd(first), _mm256_castsi256_pd(second), 0b0101);
  return Form::plus(outer, _mm256_castpd_si256(inner));
}

// A chunk's products as integers.
template <class Form>
__attribute__((always_inline)) inline __m256i dot(const __m256i (*weights)[Form::kParts], const Chunk<Form>& x) {
  __m256i sums[Form::kRaws];
#pragma GCC unroll 2
  for (int i = 0; i < Form::kRaws; ++i) {
    sums[i] = Form::product(weights[i][0], load(x.x[i][0]));
#pragma GCC unroll 2
    for (int p = 1; p < Form::kParts; ++p) sums[i] = Form::add(sums[i], weights[i][p], load(x.x[i][p]));
  }
  if constexpr (Form::kRaws == 2) return Form::dwords(Form::plus(merged<Form>(sums[0], sums[1]), load(x.start)));
  if constexpr (Form::kRaws == 1 && Form::kBias != 0)
    return Form::dwords(Form::plus(sums[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(x.start[0]))));
  return Form::dwords(sums[0]);
}

struct RowGroup {
  std::array<const uint8_t*, kRows> values;
  std::array<const uint8_t*, kRows> scales;  // of OpenAI's MXFP4
  int64_t blocks;
  const std::byte* const* x;
  int count;   // of rows that are stored
  float* out;  // [tokens, kTileRows]
  Ahead ahead;
};

// out[r] = the sum of the lanes of sum[r], of `count` rows.
__attribute__((always_inline)) inline void store_sums(const __m256 (&sum)[kRows], int count, float* out) {
  const __m256 quarters = _mm256_hadd_ps(_mm256_hadd_ps(sum[0], sum[1]), _mm256_hadd_ps(sum[2], sum[3]));
  const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(quarters), _mm256_extractf128_ps(quarters, 1));
  alignas(16) std::array<float, kRows> sums;
  _mm_store_ps(sums.data(), _mm256_castps256_ps128(infinite_to_nan(_mm256_castps128_ps256(halves))));
  std::copy_n(sums.data(), std::min(count, kRows), out);
}

template <WeightFormat kFormat, class Form, int kTokens, bool kNear>
void multiply_group(const RowGroup& rows) {
  constexpr int kTogether = Form::kRowsTogether;
  constexpr int64_t kBlock = row_bytes(kFormat, kMxBlock);
  Ahead ahead = rows.ahead;
  const Chunk<Form>* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = reinterpret_cast<const Chunk<Form>*>(rows.x[t]);
  __m256 sum[kTokens][kRows];
#pragma GCC unroll 1
  for (size_t first = 0; first < kRows; first += kTogether) {
    __m256 some[kTokens][kTogether];
#pragma GCC unroll 4
    for (int r = 0; r < kTogether; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) some[t][r] = _mm256_setzero_ps();
    }
    const auto step = [&](auto whole, int64_t block, int64_t chunk_idx) __attribute__((always_inline)) {
      if constexpr (kTogether == 1)
        ahead.fetch_line<Form::kBlocks * kBlock, kNear>();
      else
        ahead.fetch_next<Form::kBlocks * kBlock * kTogether, false>();
#pragma GCC unroll 4
      for (size_t r = 0; r < kTogether; ++r) {
        const RawChunk<Form> raw = load_chunk<kFormat, Form, decltype(whole)::value>(
            rows.values[first + r] + block * kBlock, rows.scales[first + r] + block, rows.blocks - block);
        __m256i weights[Form::kRaws][Form::kParts];
#pragma GCC unroll 2
        for (int i = 0; i < Form::kRaws; ++i) Form::decode(raw.values[i], weights[i]);
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const Chunk<Form>& chunk = x[t][chunk_idx];
          const __m256 x_scale = Form::kEnds == 1 ? _mm256_broadcast_ss(chunk.scale) : _mm256_loadu_ps(chunk.scale);
          const __m256 factor = _mm256_mul_ps(raw.scale, x_scale);
          some[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot<Form>(weights, chunk)), factor, some[t][r]);
        }
      }
    };
    const int64_t whole = rows.blocks / Form::kBlocks;
    for (int64_t c = 0; c < whole; ++c) step(std::true_type(), c * Form::kBlocks, c);
    if constexpr (Form::kBlocks > 1) {
      if (whole == 0)
        step(std::false_type(), 0, 0);
      else if (rows.blocks % Form::kBlocks != 0)
        step(std::true_type(), rows.blocks - Form::kBlocks, last_four<Form>(rows.blocks));
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kTogether; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) sum[t][first + r] = some[t][r];
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) store_sums(sum[t], rows.count, rows.out + t * kTileRows);
}

template <WeightFormat kFormat, class Form, bool kNear>
void multiply_rows_of(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  const int ahead = Ahead::rows_ahead(w, kRows);
  for (int first = 0; first < w.rows; first += kRows) {
    RowGroup rows{.values = {},
                  .scales = {},
                  .blocks = w.cols / kMxBlock,
                  .x = nullptr,
                  .count = w.rows - first,
                  .out = nullptr,
                  .ahead = Ahead(w, args.next, first + ahead)};
    for (int r = 0; r < kRows; ++r) {
      const int row = std::min(first + r, w.rows - 1);  // the last is repeated, and not stored
      rows.values[static_cast<size_t>(r)] = w.values_of(row);
      rows.scales[static_cast<size_t>(r)] = has_scale_array(kFormat) ? w.scales_of(row) : w.values;
    }
    for (int t = 0; t < args.tokens; t += kRowTokens) {
      rows.x = args.x.data() + t;
      rows.out = args.out + t * kTileRows + first;
      with_count<kRowTokens>(args.tokens - t,
                             [&](auto count) { multiply_group<kFormat, Form, decltype(count)::value, kNear>(rows); });
    }
  }
}

template <WeightFormat kFormat, class Form>
void multiply_rows(const MultiplyPreparedArgs& args) {
  return Ahead::is_near() ? multiply_rows_of<kFormat, Form, true>(args) : multiply_rows_of<kFormat, Form, false>(args);
}

// int8 products of some tokens in 256 bits: a lane of a vector per row, so that a row is decoded once for all of them.

inline constexpr int kLaneRows = 8;                         // of a vector
inline constexpr int kLaneVectors = kTileRows / kLaneRows;  // of a tile

// A block of a tile's rows: a dword of a vector is four bytes of a row.
template <class Form>
struct LaneWeights {
  static constexpr int kDwords = Form::kRaws == 2 ? 4 : 8;  // of a row's block as it lies
  __m256i parts[kDwords][Form::kParts][kLaneVectors];
  __m256 scale[kLaneVectors];
};

using LaneRows = RowsOfLanes<kLaneRows>;
using RowPointers = LaneRows::Pointers;

// out[d], lane r = dword d of the 16 bytes at row r.
inline void transpose(const RowPointers& rows, int64_t at, __m256i* out) {
  const auto two = [&](size_t r) __attribute__((always_inline)) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(rows[r] + at)), load_half(rows[r + 4] + at), 1);
  };
  const __m256i a = two(0), b = two(1), c = two(2), d = two(3);
  const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
  const __m256i ab_high = _mm256_unpackhi_epi32(a, b), cd_high = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab, cd);
  out[1] = _mm256_unpackhi_epi64(ab, cd);
  out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

// As floats: 0 becomes 0 instead of 2^-127, which changes less than what rounding to 8 bits does, and NaN becomes
// infinity.
inline __m256 e8m0_scales(const RowPointers& rows, int64_t at) {
  const auto byte = [&](size_t r) __attribute__((always_inline)) { return static_cast<int64_t>(rows[r][at]); };
  const int64_t bytes = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24 | byte(4) << 32 | byte(5) << 40 |
                        byte(6) << 48 | byte(7) << 56;
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)), 23));
}

inline __m256 f16_scales(const RowPointers& rows, int64_t at) {
  const auto half = [&](size_t r) __attribute__((always_inline)) {
    int16_t bits = 0;
    std::memcpy(&bits, rows[r] + at, sizeof bits);
    return bits;
  };
  return _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}

// Rows v * kLaneRows and on of a tile.
template <WeightFormat kFormat, class Form>
void decode_lanes(const LaneRows& rows, int64_t block, size_t v, LaneWeights<Form>& out) {
  constexpr int64_t kBytes = row_bytes(kFormat, kMxBlock);
  constexpr int64_t kFirst = kFormat == WeightFormat::kMxfp4 ? 0 : kFormat == WeightFormat::kGgmlMxfp4 ? 1 : 2;
#pragma GCC unroll 2
  for (int d = 0; d < LaneWeights<Form>::kDwords; d += 4) {
    __m256i raw[4];
    transpose(rows.values, block * kBytes + kFirst + 4 * d, raw);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m256i parts[Form::kParts];
      Form::decode(raw[i], parts);
      for (int p = 0; p < Form::kParts; ++p) out.parts[d + i][p][v] = parts[p];
    }
  }
  out.scale[v] = kFormat == WeightFormat::kGgmlQ8      ? f16_scales(rows.values, block * kBytes)
                 : kFormat == WeightFormat::kGgmlMxfp4 ? e8m0_scales(rows.values, block * kBytes)
                                                       : e8m0_scales(rows.scales, block);
}

template <class Form>
struct Strip {
  // Blocks whose decoded weights (20 KB) stay in the first cache while the tokens pass by: a fifth, or a tenth, of 2880
  // columns.
  static constexpr int64_t kMostBlocks = sizeof(LaneWeights<Form>) > 2048 ? 9 : 18;

  const LaneWeights<Form>* w;
  int64_t first, blocks;
  int64_t ahead_bytes;  // to fetch per block
};

// sums [kTokens, kTileRows] += the strip's products; x: the tokens' rows.
template <class Form, int kTokens>
void multiply_strip(const Strip<Form>& strip, const std::byte* const* x, Ahead& ahead, float* sums) {
  for (int64_t b = 0; b < strip.blocks; ++b) {
    const LaneWeights<Form>& w = strip.w[b];
    const int64_t block = strip.first + b, chunk_idx = block / Form::kBlocks, i = block % Form::kBlocks;
    ahead.advance(strip.ahead_bytes);
    const Chunk<Form>* chunks[kTokens];
    __m256i dots[kTokens][kLaneVectors];
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      chunks[t] = reinterpret_cast<const Chunk<Form>*>(x[t]) + chunk_idx;
      const int32_t* start = chunks[t]->start + Chunk<Form>::end_of(i);
#pragma GCC unroll 4
      for (int v = 0; v < kLaneVectors; ++v)
        dots[t][v] = Form::kBias == 0 ? _mm256_setzero_si256() : broadcast_dword(start);
    }
#pragma GCC unroll 8
    for (int d = 0; d < LaneWeights<Form>::kDwords; ++d) {
#pragma GCC unroll 2
      for (int p = 0; p < Form::kParts; ++p) {
#pragma GCC unroll 2
        for (int t = 0; t < kTokens; ++t) {
          const int8_t* values = &chunks[t]->x[0][0][0] + Chunk<Form>::values_of(i);
          const __m256i four = broadcast_dword(values + p * 32 + d * 4);
#pragma GCC unroll 4
          for (int v = 0; v < kLaneVectors; ++v) dots[t][v] = Form::add(dots[t][v], w.parts[d][p][v], four);
        }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      const __m256 x_scale = _mm256_broadcast_ss(chunks[t]->scale + Chunk<Form>::end_of(i));
#pragma GCC unroll 4
      for (int v = 0; v < kLaneVectors; ++v) {
        float* const sum = sums + t * kTileRows + v * kLaneRows;
        const __m256 factor = _mm256_mul_ps(w.scale[v], x_scale);
        const __m256 products = _mm256_cvtepi32_ps(Form::dwords(dots[t][v]));
        _mm256_store_ps(sum, _mm256_fmadd_ps(products, factor, _mm256_load_ps(sum)));
      }
    }
  }
}

// The rows' sums of each token, [tokens, kTileRows], to args.out.
inline void store_lanes(const MultiplyPreparedArgs& args, float* sums) {
  for (int t = 0; t < args.tokens; ++t) {
    float* const row = sums + t * kTileRows;
    for (int v = 0; v < kLaneVectors; ++v)
      _mm256_store_ps(row + v * kLaneRows, infinite_to_nan(_mm256_load_ps(row + v * kLaneRows)));
    std::copy_n(row, args.w.rows, args.out + t * kTileRows);
  }
}

template <WeightFormat kFormat, class Form>
void multiply_lanes(const MultiplyPreparedArgs& args) {
  const WeightRows& w = args.w;
  const std::array<LaneRows, kLaneVectors> rows = {LaneRows(w, 0), LaneRows(w, kLaneRows), LaneRows(w, 2 * kLaneRows),
                                                   LaneRows(w, 3 * kLaneRows)};
  auto* const decoded = reinterpret_cast<LaneWeights<Form>*>(args.scratch);
  Ahead ahead(w, args.next, Ahead::rows_ahead(w, kTileRows));
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), args.tokens * kTileRows, 0.0f);
  const int64_t blocks = w.cols / kMxBlock, passes = (args.tokens + 1) / 2 * blocks;
  const int64_t ahead_bytes = (kTileRows * row_bytes(kFormat, w.cols) + passes - 1) / passes;
  for (int64_t first = 0; first < blocks; first += Strip<Form>::kMostBlocks) {
    const Strip<Form> strip{decoded, first, std::min(Strip<Form>::kMostBlocks, blocks - first), ahead_bytes};
    for (int64_t b = 0; b < strip.blocks; ++b)
      for (size_t v = 0; v < kLaneVectors; ++v) decode_lanes<kFormat>(rows[v], first + b, v, decoded[b]);
    for (int t = 0; t < args.tokens; t += 2)
      (t + 1 < args.tokens ? multiply_strip<Form, 2> : multiply_strip<Form, 1>)(strip, args.x.data() + t, ahead,
                                                                                sums.data() + t * kTileRows);
  }
  store_lanes(args, sums.data());
}

}  // namespace avx2

namespace {

template <class Fp4, class Q8, CpuIsa kIsa>
struct Table {
  static int64_t row_size(int64_t cols) {
    const auto size = static_cast<int64_t>(std::max((avx2::chunks_of<Fp4>(cols) + 1) * sizeof(avx2::Chunk<Fp4>),
                                                    (avx2::chunks_of<Q8>(cols) + 1) * sizeof(avx2::Chunk<Q8>)));
    return (size + 63) / 64 * 64;
  }

  static void prepare(WeightFormat format, std::span<const float> x, int64_t /*tokens*/, std::byte* out) {
    if (format == WeightFormat::kGgmlQ8) return avx2::prepare_row(format, x, reinterpret_cast<avx2::Chunk<Q8>*>(out));
    avx2::prepare_row(format, x, reinterpret_cast<avx2::Chunk<Fp4>*>(out));
  }

  static constexpr int kLanesFrom = 4;  // tokens from which a lane per row is faster

  template <WeightFormat kFormat, class Form>
  static void multiply_as(const MultiplyPreparedArgs& args) {
    (args.tokens >= kLanesFrom ? avx2::multiply_lanes<kFormat, Form> : avx2::multiply_rows<kFormat, Form>)(args);
  }

  static CpuIsa multiply(const MultiplyPreparedArgs& args) {
    with_int8_format(args.w.format, [&](auto format) {
      constexpr WeightFormat kFormat = decltype(format)::value;
      multiply_as<kFormat, std::conditional_t<kFormat == WeightFormat::kGgmlQ8, Q8, Fp4>>(args);
    });
    return kIsa;
  }

  static constexpr Int8Kernels kKernels{
      .row_size = row_size, .prepare_row = prepare, .multiply_rows = multiply, .alike_tokens = kLanesFrom - 1};
};

}  // namespace

Kernels with_avx2(Kernels portable) {
  portable.int8 = &Table<avx2::Fp4Form<avx2::InWords>, avx2::Q8Words, CpuIsa::kAvx2>::kKernels;
  portable.screen = screen_avx2;
  return portable;
}

Kernels with_avx_vnni(Kernels portable) {
  if (!__builtin_cpu_supports("avxvnni")) return portable;
  portable.name = "avx vnni";
  portable.int8 = &Table<avx2::Fp4Form<avx2::InDwords>, avx2::Q8Bytes, CpuIsa::kAvxVnni>::kKernels;
  return portable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
