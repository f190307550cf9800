// int8 products of Q8_0 and some tokens: a few lanes of a vector per token, so that weights are broadcast as they lie,
// and decoded once for all tokens while they come from memory.
#include "backend/cpu/avx512_int8.h"

#include <bit>

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {
namespace {

constexpr int kRows = 8;  // of weights that share what is loaded of the tokens

// 32 values of as many tokens as a vector holds, kDwords lanes each.
template <int kDwords>
struct alignas(64) TokenBlock {
  static constexpr int kTokens = 16 / kDwords, kSteps = 8 / kDwords;
  int8_t values[kSteps][kTokens][4 * kDwords];
  int32_t ends[kTokens][kDwords];  // -bias times their sum, and the bits of their scale
};
constexpr int kSome = TokenBlock<4>::kTokens, kMore = TokenBlock<2>::kTokens;
constexpr int kMost = 2 * kMore;  // two passes over rows in the first cache
static_assert(kMost <= kLaneTokens);

template <int kDwords>
void prepare_part(const PrepareTileArgs& args, std::span<const float* const> x, TokenBlock<kDwords>* out) {
  using Block = TokenBlock<kDwords>;
  std::memset(out + args.first, 0, static_cast<size_t>(args.last - args.first) * sizeof(Block));
  for (size_t t = 0; t < x.size(); ++t) {
    for (int64_t b = args.first; b < args.last; ++b) {
      const Int8Block q = quantise(x[t] + b * kMxBlock);
      alignas(16) int8_t values[kMxBlock];
      _mm_store_si128(reinterpret_cast<__m128i*>(values), q.first);
      _mm_store_si128(reinterpret_cast<__m128i*>(values + 16), q.second);
      for (int s = 0; s < Block::kSteps; ++s) std::memcpy(out[b].values[s][t], values + s * 4 * kDwords, 4 * kDwords);
      out[b].ends[t][0] = start_of(q, kQ8Bias);
      out[b].ends[t][1] = std::bit_cast<int32_t>(q.scale);
    }
  }
}

template <int kDwords>
__m512i broadcast(const uint8_t* p) {
  if constexpr (kDwords == 4) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  } else {
    long long quad = 0;
    std::memcpy(&quad, p, sizeof quad);
    return _mm512_set1_epi64(quad);
  }
}

// out [tokens, kRows]: the sums of four rows' lanes. What is infinite becomes NaN: no later clamp may hide damaged
// weights.
template <int kDwords>
void store_four(const __m512* sum, float* out) {
  const auto store = [&](__m512 tokens, int first, int apart) __attribute__((always_inline)) {
    alignas(64) std::array<float, 16> four;
    _mm512_store_ps(four.data(), _mm512_add_ps(tokens, _mm512_sub_ps(tokens, tokens)));
    for (int i = 0; i < 4; ++i) std::copy_n(four.data() + 4 * i, 4, out + (first + i * apart) * kRows);
  };
  const __m512 two = neighbours(sum[0], sum[1]);
  const __m512 other_two = neighbours(sum[2], sum[3]);
  if constexpr (kDwords == 4) {
    store(neighbours(two, other_two), 0, 1);
  } else {
    store(_mm512_shuffle_ps(two, other_two, 0x88), 0, 2);
    store(_mm512_shuffle_ps(two, other_two, 0xdd), 1, 2);
  }
}

// kRows of w from `first` on; out: [tokens, kRows].
template <int kDwords>
void multiply_group(const MultiplyPreparedArgs& args, int first, const TokenBlock<kDwords>* x, float* out) {
  using Block = TokenBlock<kDwords>;
  std::array<const uint8_t*, kRows> rows;
  for (int r = 0; r < kRows; ++r)  // the last is repeated, and not stored
    rows[static_cast<size_t>(r)] = args.w.values_of(std::min(first + r, args.w.rows - 1));
  Ahead ahead(args.w, args.next, first + Ahead::rows_ahead(args.w, kRows));
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kQ8Bias));
  __m512 sum[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  for (int64_t b = 0; b < args.w.cols / kMxBlock; ++b) {
    ahead.fetch_next<kRows * kBlockBytes<WeightFormat::kGgmlQ8>, false>();
    const __m512i ends = _mm512_load_si512(x[b].ends);
    const __m512i start = _mm512_maskz_mov_epi32(kDwords == 4 ? 0x1111 : 0x5555, ends);
    const __m512 scale = _mm512_castsi512_ps(_mm512_shuffle_epi32(ends, kDwords == 4 ? _MM_PERM_BBBB : _MM_PERM_DDBB));
    __m512i values[Block::kSteps];
#pragma GCC unroll 4
    for (int s = 0; s < Block::kSteps; ++s) values[s] = _mm512_load_si512(x[b].values[s]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* at = rows[static_cast<size_t>(r)] + b * kBlockBytes<WeightFormat::kGgmlQ8>;
      __m512i dot = start;
#pragma GCC unroll 4
      for (int s = 0; s < Block::kSteps; ++s) {
        const __m512i codes = _mm512_xor_epi64(broadcast<kDwords>(at + 2 + s * 4 * kDwords), bias);
        dot = _mm512_dpbusd_epi32(dot, codes, values[s]);
      }
      int16_t bits = 0;
      std::memcpy(&bits, at, sizeof bits);
      const __m512 factor = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_set1_epi16(bits)), scale);
      sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum[r]);
    }
  }
  alignas(64) __m512 sums[kRows];  // a copy, or the sums were in memory all the time
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r] = sum[r];
  store_four<kDwords>(sums, out);
  store_four<kDwords>(sums + 4, out + 4);
}

bool serves(WeightFormat format, int64_t tokens) {
  return format == WeightFormat::kGgmlQ8 && tokens > 2 && tokens <= kMost;
}

int64_t tile_size(int64_t cols) { return cols / kMxBlock * int64_t{2 * sizeof(TokenBlock<2>)}; }

void prepare(const PrepareTileArgs& args) {
  std::span<const float* const> x = args.x;
  if (x.size() <= kSome) return prepare_part(args, x, reinterpret_cast<TokenBlock<4>*>(args.out));
  auto* part = reinterpret_cast<TokenBlock<2>*>(args.out);
  for (; !x.empty(); x = x.subspan(std::min<size_t>(x.size(), kMore)), part += args.cols / kMxBlock)
    prepare_part(args, x.first(std::min<size_t>(x.size(), kMore)), part);
}

CpuIsa multiply(const MultiplyPreparedArgs& args) {
  const int64_t blocks = args.w.cols / kMxBlock;
  std::array<float, size_t{kMore} * kRows> sums;
  for (int first = 0; first < args.w.rows; first += kRows) {
    const int rows = std::min(kRows, args.w.rows - first);
    for (int t = 0; t < args.tokens; t += kMore) {
      if (args.tokens <= kSome) {
        multiply_group(args, first, reinterpret_cast<const TokenBlock<4>*>(args.x[0]), sums.data());
      } else {
        multiply_group(args, first, reinterpret_cast<const TokenBlock<2>*>(args.x[0]) + t / kMore * blocks,
                       sums.data());
      }
      for (int i = 0; i < std::min(kMore, args.tokens - t); ++i)
        std::copy_n(sums.data() + i * kRows, rows, args.out + (t + i) * kTileRows + first);
    }
  }
  return CpuIsa::kAvx512;
}

}  // namespace

constinit const TokenTiles kInt8TokenTiles{
    .name = "avx512 vnni", .serves = serves, .size = tile_size, .prepare = prepare, .multiply = multiply};

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
