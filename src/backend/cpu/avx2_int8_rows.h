#pragma once
// int8 products of few tokens in 256 bits: a row of weights goes by in the order of its bytes.
#include "backend/cpu/avx2_int8.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu::avx2 {

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

// Of the sums of blocks 0 and 1, and of 2 and 3: two dwords of each block, in Chunk's order.
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
      if (whole == 0) {
        step(std::false_type(), 0, 0);
      } else if (rows.blocks % Form::kBlocks != 0) {
        step(std::true_type(), rows.blocks - Form::kBlocks, last_four<Form>(rows.blocks));
      }
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
      switch (args.tokens - t) {
        case 1: multiply_group<kFormat, Form, 1, kNear>(rows); break;
        case 2: multiply_group<kFormat, Form, 2, kNear>(rows); break;
        default: multiply_group<kFormat, Form, 3, kNear>(rows);
      }
    }
  }
}

template <WeightFormat kFormat, class Form>
void multiply_rows(const MultiplyPreparedArgs& args) {
  return Ahead::is_near() ? multiply_rows_of<kFormat, Form, true>(args) : multiply_rows_of<kFormat, Form, false>(args);
}

}  // namespace nibble::backend::cpu::avx2
HWY_POP_ATTRIBUTES
