#pragma once
// int8 products of many tokens in tiles of AMX: sums[16 tokens][16 rows] += x[16 tokens][32] · w[32][16 rows] per block
// of 32 values, whose integers then leave the tile, as every block has scales of its own. In a tile of 64 values two
// blocks' integers would mix; those of half the width take as long, but the vector work on scales takes longer still.
// Bits are those of multiply_int8_lanes. Included inside its target attributes' files only.
//
// Tiles is the machine's instructions (amx_int8.cpp) or, in tests, what Intel's manual says they do.
#include "backend/cpu/amx.h"
#include "backend/cpu/avx512_lanes.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX512_TARGET)
namespace nibble::backend::cpu {

// 32 values of kLaneTokens tokens in the order of LaneWeights::quads.
struct AmxBlock {
  int8_t values[kLaneTokens][kMxBlock];
  float scale[kLaneTokens];  // times kFp4Unit where the weights are MXFP4
};

// Tiles 0 to 3 are sums, two each x and w: those of consecutive blocks take turns.
inline constexpr int kAmxSums = 4, kAmxX = 4, kAmxW = 6;
// Blocks under way. What a tile stores can be loaded only once it has reached the cache, more than a hundred cycles
// after its block began.
inline constexpr int kAmxRing = 8;
inline constexpr TileConfig kAmxInt8Shapes = [] {
  TileConfig config;
  for (size_t i = 0; i < kAmxSums; ++i) config.shape(i, kLaneTokens, kLaneRows * 4);
  for (size_t i = 0; i < 2; ++i) {
    config.shape(kAmxX + i, kLaneTokens, kMxBlock);
    config.shape(kAmxW + i, kMxBlock / 4, kLaneRows * 4);
  }
  return config;
}();

// Some blocks of a row tile and of a token tile.
struct AmxStrip {
  const LaneWeights* w;
  const AmxBlock* x;
  int64_t blocks;
  float* sums;          // [kLaneTokens, kLaneRows] of [.., kTileRows]
  int64_t ahead_bytes;  // to fetch per block
};

template <class Tiles>
class AmxStripLoop {
 public:
  AmxStripLoop(Tiles& tiles, Ahead& ahead, const AmxStrip& strip) : tiles_(tiles), ahead_(ahead), strip_(strip) {}

  void run() {
    __m512 sum[kLaneTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kLaneTokens; ++t) sum[t] = _mm512_load_ps(strip_.sums + t * kTileRows);
    for (int64_t b = 0; b < strip_.blocks + kAmxRing - 1; b += kAmxSums) {
      step<0>(b, sum);
      step<1>(b + 1, sum);
      step<2>(b + 2, sum);
      step<3>(b + 3, sum);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kLaneTokens; ++t) _mm512_store_ps(strip_.sums + t * kTileRows, sum[t]);
  }

 private:
  // Begins block b and adds the oldest that is under way.
  template <int kSums>
  __attribute__((always_inline)) void step(int64_t b, __m512* sum) {
    if (b < strip_.blocks) begin<kSums>(b);
    const int64_t oldest = b - (kAmxRing - 1);
    if (oldest >= 0 && oldest < strip_.blocks) add(oldest, sum);
  }
  template <int kSums>
  __attribute__((always_inline)) void begin(int64_t b) {
    constexpr int kX = kAmxX + kSums % 2, kW = kAmxW + kSums % 2;
    ahead_.advance(strip_.ahead_bytes);
    const auto* soon = reinterpret_cast<const char*>(strip_.x + b + 4);  // whose strides no hardware follows in time
#pragma GCC unroll 9
    for (size_t line = 0; line < sizeof(AmxBlock); line += 64) _mm_prefetch(soon + line, _MM_HINT_T0);
    tiles_.template load<kX>(strip_.x[b].values, kMxBlock);
    tiles_.template load<kW>(strip_.w[b].quads, kLaneRows * 4);
    tiles_.template zero<kSums>();
    tiles_.template multiply<kSums, kX, kW>();
    tiles_.template store<kSums>(dots_[static_cast<size_t>(b) % kAmxRing], kLaneRows * 4);
  }
  __attribute__((always_inline)) void add(int64_t b, __m512* sum) {
    const __m512 scale = strip_.w[b].scale;
    const auto& dots = dots_[static_cast<size_t>(b) % kAmxRing];
#pragma GCC unroll 16
    for (int t = 0; t < kLaneTokens; ++t) {
      const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(strip_.x[b].scale[t]));
      sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(dots[t])), factor, sum[t]);
    }
  }

  Tiles& tiles_;
  Ahead& ahead_;
  const AmxStrip strip_;
  alignas(64) int32_t dots_[kAmxRing][kLaneTokens][kLaneRows];
};

// Blocks whose decoded weights stay in the first cache while the tokens' pass by.
inline constexpr int64_t kAmxStripBlocks = 32;

template <class Tiles, WeightFormat kFormat>
void multiply_amx_format(const MultiplyInt8Args& args) {
  const WeightRows& w = args.w;
  const __m512i table = kFormat == WeightFormat::kGgmlQ8 ? _mm512_setzero_si512() : fp4_table(0);
  auto* const decoded = reinterpret_cast<LaneWeights*>(args.scratch);
  const int64_t blocks = w.cols / kMxBlock, tiles_of_tokens = static_cast<int64_t>(args.x.size());
  const int64_t ahead_bytes = (kLaneRows * row_bytes(kFormat, kMxBlock) + tiles_of_tokens - 1) / tiles_of_tokens;
  alignas(64) std::array<float, size_t{kTileTokens} * kTileRows> sums;
  std::fill_n(sums.begin(), tiles_of_tokens * kLaneTokens * kTileRows, 0.0f);
  Ahead ahead(w, args.next, 0, kTileRows);
  Tiles tiles;
  for (int64_t first = 0; first < blocks; first += kAmxStripBlocks) {
    const int64_t count = std::min(kAmxStripBlocks, blocks - first);
    for (int row = 0; row < kTileRows; row += kLaneRows) {
      const LaneRows rows(w, row);
      for (int64_t b = 0; b < count; ++b) decoded[b] = decode_lanes<kFormat>(rows, first + b, table);
      for (int64_t i = 0; i < tiles_of_tokens; ++i) {
        const auto* x = reinterpret_cast<const AmxBlock*>(args.x[static_cast<size_t>(i)]);
        AmxStripLoop(tiles, ahead,
                     {.w = decoded,
                      .x = x + first,
                      .blocks = count,
                      .sums = sums.data() + i * kLaneTokens * kTileRows + row,
                      .ahead_bytes = ahead_bytes})
            .run();
      }
    }
  }
  store_lanes(args, sums.data());
}

template <class Tiles>
void multiply_amx(const MultiplyInt8Args& args) {
  switch (args.w.format) {
    case WeightFormat::kMxfp4: return multiply_amx_format<Tiles, WeightFormat::kMxfp4>(args);
    case WeightFormat::kGgmlMxfp4: return multiply_amx_format<Tiles, WeightFormat::kGgmlMxfp4>(args);
    default: return multiply_amx_format<Tiles, WeightFormat::kGgmlQ8>(args);
  }
}

[[nodiscard]] int64_t amx_tile_size(int64_t cols);
void prepare_amx_tile(WeightFormat format, std::span<const float* const> x, int64_t cols, std::byte* out);

// Few tokens are multiplied as by avx512_int8_kernels().
template <class Tiles>
const Int8Kernels& amx_int8_kernels() {
  static constexpr Int8Tiles kTiles{.name = "amx int8",
                                    .from = 12,
                                    .size = amx_tile_size,
                                    .prepare = prepare_amx_tile,
                                    .multiply = multiply_amx<Tiles>};
  static constexpr Int8Kernels kTable{.row_size = int8_row_size,
                                      .prepare_row = prepare_int8_row,
                                      .multiply_rows = multiply_int8_rows,
                                      .tiles = &kTiles};
  return kTable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
