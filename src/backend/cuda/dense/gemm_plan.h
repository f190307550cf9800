#pragma once
// Matrix products for many tokens (9 and more) and what the MoE needs around them. Plain C++.

#include "backend/activations.h"
#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/layout/packed.h"
#include "base/dtype.h"

#include <cstdint>
#include <limits>
#include <string_view>

namespace nibble::backend::cuda {

// Experts as lists of pairs have them, and as ranks do.

// Some of the pairs (token * topk + k) that use one expert: [first, first + count) of a list by expert.
struct ExpertTile {
  int32_t expert = 0, first = 0, count = 0;
  int32_t stored = 0;  // work tiles of gate_up whose part of u is there: sm90_mxfp4_gemm's own
  friend constexpr bool operator==(const ExpertTile&, const ExpertTile&) = default;
};

// Which of the router's experts a rank of several has whole. It numbers its own from 0: weights, biases and tiles are
// by that number; what a router says is by the router's.
struct OwnExperts {
  int first = 0;
  int count = std::numeric_limits<int>::max();  // that: all there are

  // -1: another rank's.
  [[nodiscard]] constexpr int number_of(int expert) const {
    const int own = expert - first;
    return own >= 0 && own < count ? own : -1;
  }
  [[nodiscard]] constexpr bool all() const { return count == std::numeric_limits<int>::max(); }
  // How many are its own of as many as the router counts.
  [[nodiscard]] constexpr int of(int experts) const { return count < experts ? count : experts; }
};

// Where a GEMM finds its activations, and their form.
enum class InputType : uint8_t {
  kBf16,
  kF16,
  kMxfp8,  // from here on codes, in rows of layout/mx_b_n8k64.h
  kMxfp6,
  kMxfp4,
};
// The kernel of an instance by the packing of its weights.
template <size_t kCount>
[[nodiscard]] constexpr Kernel by_packing(const Kernel (&kernels)[kCount], layout::Packing packing) {
  return kernels[static_cast<size_t>(packing)];
}
[[nodiscard]] constexpr InputType input_type(layout::Packing packing) {
  return layout::has_mx_blocks(packing) ? InputType::kF16 : InputType::kBf16;
}
[[nodiscard]] constexpr bool in_codes(InputType type) { return type != InputType::kBf16 && type != InputType::kF16; }
// Codes of a format in MX blocks, and back.
[[nodiscard]] constexpr InputType codes_of(backend::Activations format) {
  return static_cast<InputType>(static_cast<int>(InputType::kMxfp8) + static_cast<int>(format) -
                                static_cast<int>(backend::Activations::kMxfp8));
}
[[nodiscard]] constexpr backend::Activations activations_of(InputType codes) {
  return static_cast<backend::Activations>(static_cast<int>(backend::Activations::kMxfp8) + static_cast<int>(codes) -
                                           static_cast<int>(InputType::kMxfp8));
}
static_assert(codes_of(backend::Activations::kMxfp6) == InputType::kMxfp6 &&
              codes_of(backend::Activations::kMxfp4) == InputType::kMxfp4 &&
              activations_of(InputType::kMxfp8) == backend::Activations::kMxfp8);
[[nodiscard]] constexpr MxFormat element_of(InputType codes) { return type_of(activations_of(codes)).blocks->element; }

struct GemmInput {
  uint16_t* at = nullptr;  // [tokens, cols] of its type, 16-byte aligned; null: none
  InputType type = InputType::kBf16;
  int rows = 0;  // of the panels (layout/wgmma_b.h), a multiple of 8 that holds the tokens; 0: row-major
};

inline constexpr int kGemmMaxParts = 3;
inline constexpr int kGroupMaxExperts = 1024;
inline constexpr int kGroupAlign = 8;  // an expert's places start at a multiple (layout/wgmma_b.h atoms)

// Pairs in each of an expert's tiles but the last: the fewest tiles of up to `most`, as even as multiples of 8 allow.
[[nodiscard]] constexpr int even_tile(int count, int most) {
  const int tiles = (count + most - 1) / most;
  return ((count + tiles - 1) / tiles + 7) / 8 * 8;
}
// Places that the pairs may take, with the gaps between experts.
[[nodiscard]] constexpr int64_t max_places(int64_t pairs, int64_t experts) {
  const int64_t gaps = (pairs < experts ? pairs : experts) * (kGroupAlign - 1);
  return (pairs + gaps + kGroupAlign - 1) / kGroupAlign * kGroupAlign;
}
[[nodiscard]] constexpr int64_t max_expert_tiles(int64_t pairs, int64_t experts, int tile_tokens) {
  return pairs / tile_tokens + (pairs < experts ? pairs : experts);
}

// Which of `count` tiles by falling size is the y-th to begin: large ones, which keep the multipliers busy, and small
// ones, which wait for memory, take turns. The last few stay last: what ends a launch is short.
inline constexpr int kShortestTiles = 8;
[[nodiscard]] constexpr int tile_in_turn(int y, int count) {
  const int turns = count - kShortestTiles;
  if (y >= turns) return y;
  return y % 2 == 0 ? y / 2 : turns - 1 - y / 2;
}

inline constexpr int kTileCounts = 3;
// The pairs of own experts by expert, rising within one, and their tiles, which have the experts' own numbers; all on
// the device.
struct GroupTiles {
  static constexpr Kernel kName{"any_moe_group_tiles"};
  static constexpr std::string_view kTile = "a CTA per expert";
  struct Args {
    const int32_t* expert_ids = nullptr;  // [tokens, topk], the router's
    int32_t* pairs = nullptr;             // [max_places]: the pair at each place; -1 in gaps
    int32_t* places = nullptr;            // [tokens * topk]: each pair's place, or null; -1: another rank's expert
    ExpertTile* tiles = nullptr;          // [max_expert_tiles], by falling size
    int32_t* tile_counts = nullptr;       // [kTileCounts]: how many tiles hold more than 8 * i pairs
    int tokens = 0, topk = 0, experts = 0, tile_tokens = 0;  // experts: own ones
    OwnExperts own{};
  };
  static void launch(const Args& args, const Launch& on);
};
void check_args(const GroupTiles::Args& args);

// A range of result rows and where it goes: to[token, row - first_row].
struct GemmPart {
  float* to = nullptr;  // [tokens, rows]
  int first_row = 0, rows = 0;
};

// The experts' second product in the same launch as the first: y16[t, r] = W[r] · u[t] + bias[r]. It has as many rows
// as the first has columns.
struct GemmDown {
  const uint8_t* weights = nullptr;  // [experts] of [rows, block_pair_width(inter)], in kPlain; null: none
  const Bf16* bias = nullptr;        // [experts, rows]
  uint16_t* y16 = nullptr;           // bf16 [tokens, rows]
};

// y[t, r] = W[r] · x[t] + bias[r]. Of experts (tiles given): t is a pair, W and bias are those of its expert, x's row
// is pair / x_share. Weights are packed as layout/packed.h says; x is of input_type. any_gemm: x row-major, 16-byte
// aligned. sm90_gemm: x and u in the panels of layout/wgmma_b.h, of x_rows rows; of experts, a row is a place
// (GroupTiles::Args) instead of a pair. sm121_mx_gemm: x and u are codes, in rows of layout/mx_b_n8k64.h. Products are
// exact (sm90_gemm: but for MXFP4 scales below 2^-20), sums f32 in an order fixed by cols: bitwise repeatable, whatever
// the other tokens.
struct GemmArgs {
  layout::Packing packing = layout::Packing::kBf16;
  layout::RowOrder order = layout::RowOrder::kPlain;
  const uint8_t* weights = nullptr;    // [experts or 1] of [rows, cols]
  const Bf16* bias = nullptr;          // [experts or 1, rows] in the checkpoint's order, or null
  const uint16_t* x = nullptr;         // [*, cols]
  GemmPart parts[kGemmMaxParts] = {};  // a row lies in one of them
  int rows = 0, cols = 0, tokens = 0;  // of experts: tokens is the number of pairs
  // Experts
  ExpertTile* tiles = nullptr;  // with down: each list serves one launch
  const int32_t* tile_count = nullptr;
  const int32_t* pairs = nullptr;
  int x_share = 1, experts = 1;
  int x_rows = 0;  // sm90_gemm: a multiple of 8 that holds all rows
  // sm90_gemm of experts, [x_rows]: x is e4m3 codes in panels (layout/wgmma_b.h), times its row's scale. One product.
  const float* x_scales = nullptr;
  int scale_top = layout::kMaxNarrowScaleCode;  // with x_scales: the largest scale code of the weights
  uint16_t* y16 = nullptr;                      // instead of parts, with MXFP4 rows in kPlain: bf16 [tokens, rows]
  // Instead of parts: sums as SplitGemmArgs has them. sm90_dense_gemm and sm121_mx_gemm leave one part, sm90_mxfp4_gemm
  // `splits`; sm90_dense_gemm alone adds a bias.
  uint16_t* sums = nullptr;
  int splits = 1;
  PartPlaces places{};  // where sm90_dense_gemm sends its sums
  // order kGateUp: u[t, i] = swiglu(row 2i, row 2i + 1) instead of parts
  uint16_t* u =
      nullptr;  // [tokens, layout::block_pair_width(rows / 2)] of x's type and order; f16 where x is codes of rows
  float swiglu_limit = 7.0f;
  InputType codes = InputType::kMxfp8;  // sm121_mx_gemm: of x and u
  GemmDown down{};                      // sm90_gemm, inter = rows / 2 (sm90_experts_at_once)
};
// The arguments of a launch of its own for args.down.
[[nodiscard]] GemmArgs down_alone(const GemmArgs& args);

// Rounds activations to the type and order that a GEMM takes. In panels (cols a multiple of 64) row t goes to places[t
// * copies + i] unless that is -1, and to t without places. Otherwise cols is a multiple of 32. Places that get no row
// are not written.
struct Round {
  static constexpr Kernel kName{"any_round_f32"};
  static constexpr std::string_view kTile = "8 values per thread";
  struct Args {
    const float* from = nullptr;  // [tokens, cols]
    GemmInput to{};
    int tokens = 0, cols = 0;
    const float* inverse = nullptr;  // [tokens], with norm [cols]: from * inverse * norm is rounded
    const Bf16* norm = nullptr;
    const int32_t* places = nullptr;
    int copies = 1;
  };
  static void launch(const Args& args, const Launch& on);
};
// Grouping and rounding in one launch: rounded to the places that it finds, a copy for each of a token's pairs; for
// group_while_rounding.
struct GroupRound {
  static constexpr Kernel kName{"any_group_round_f32"};
  static constexpr std::string_view kTile = Round::kTile;
  struct Args {
    GroupTiles::Args group;
    Round::Args round;
  };
  static void launch(const Args& args, const Launch& on);
};
// Whether a step has so few pairs that each token's CTA finds the token's places itself.
[[nodiscard]] constexpr bool group_while_rounding(bool by_place, int64_t pairs) { return by_place && pairs <= 1024; }

// Grid: blocks of rows x tiles of tokens that there may be; sm90_gemm and sm121_mx_gemm: CTAs, which take tiles in
// turn.
struct GemmPlan : Plan {
  int rows = 0, tokens = 0;  // of a tile; tokens: at most
  int splits = 1;            // parts of K, for GemmArgs::sums alone
};
// With the text of its tile.
[[nodiscard]] GemmPlan plan_tiles(const Plan& launch, int rows, int tokens, int splits = 1);

struct GemmShape {
  int64_t rows = 0, cols = 0;
  int64_t tokens = 0;  // grouped: pairs
  int64_t experts = 1;
  layout::Packing packing = layout::Packing::kMxfp4;
  bool wide_scales = false;  // of MXFP4: some scale code is above layout::kMaxNarrowScaleCode
  bool row_codes = false;    // sm90_gemm: x as GemmArgs::x_scales says
  backend::Activations activations = backend::Activations::kBf16;  // what x is rounded to
};

// The tile of a CTA of any_gemm.
struct GemmTileSize {
  int rows = 0, tokens = 0, warps = 4;  // four by rows
  friend constexpr bool operator==(const GemmTileSize&, const GemmTileSize&) = default;
};
// Few tokens: as many CTAs as possible. Many: weights are widened once per 64 tokens; MXFP4's once per 96, so that most
// experts of a long prompt are one tile; bf16's, which L2 must deliver whole, are read once per 128. Tall: a warp uses
// x for 16 more rows; experts do so where two such CTAs fit on an SM.
inline constexpr GemmTileSize kGemmFew{64, 64}, kGemmMany{192, 64}, kGemmWide{192, 128, 8}, kGemmExperts{128, 96},
    kGemmExpertsTall{192, 96}, kGemmWideTall{256, 128, 8};
inline constexpr GemmTileSize kGemmTiles[] = {kGemmFew,     kGemmMany,        kGemmWide,
                                              kGemmExperts, kGemmExpertsTall, kGemmWideTall};
[[nodiscard]] constexpr bool gemm_for_experts(GemmTileSize tile) {
  return tile == kGemmExperts || tile == kGemmExpertsTall;
}
[[nodiscard]] constexpr bool gemm_has_tile(layout::Packing packing, layout::RowOrder order, GemmTileSize tile) {
  if (order == layout::RowOrder::kGateUp || gemm_for_experts(tile))
    return packing == layout::Packing::kMxfp4 && gemm_for_experts(tile);
  if (tile == kGemmWide || tile == kGemmWideTall) return packing == layout::Packing::kBf16;
  return tile == kGemmFew || packing != layout::Packing::kMxfp4;
}
// A stage of its ring: blocks of k, bytes of a row tile's codes and of its scales, bytes of all.
[[nodiscard]] constexpr int gemm_stage_blocks(layout::Packing packing) {
  return packing == layout::Packing::kBf16 ? 1 : 2;
}
[[nodiscard]] constexpr int gemm_code_bytes(layout::Packing packing) {
  return packing == layout::Packing::kMxfp4 ? 512 : 1024;
}
[[nodiscard]] constexpr int gemm_scale_bytes(layout::Packing packing) {
  return layout::has_mx_blocks(packing)    ? 2 * layout::kTileRows
         : packing == layout::Packing::kQ8 ? 4 * layout::kTileRows
                                           : 0;
}
[[nodiscard]] constexpr int gemm_stage_bytes(layout::Packing packing, GemmTileSize tile) {
  return tile.rows / layout::kTileRows * (gemm_code_bytes(packing) + gemm_scale_bytes(packing)) +
         tile.tokens * gemm_stage_blocks(packing) * layout::kBlockK * 2;
}
// As many stages as leave room for two CTAs where an SM has 100 KB (tall: 164), or one of 80 KB; of as many tokens as
// the tile has. Fewer tokens leave room for more stages (gemm_tile.cuh Ring).
[[nodiscard]] constexpr int gemm_stages(layout::Packing packing, GemmTileSize tile) {
  if (packing == layout::Packing::kBf16) return tile == kGemmFew ? 8 : 4;
  if (packing != layout::Packing::kMxfp4) return tile == kGemmFew ? 4 : 3;
  return tile == kGemmFew ? 5 : tile == kGemmExpertsTall ? 4 : 3;
}
// Throws Error(kUnsupported) for a shape that has no tiles.
void require_tiles(const GemmShape& shape);
// any_gemm's tile that should finish first: waves of CTAs over the SMs times a tile's work. All of a step's grouped
// launches must use the same tile: plan with the larger rows. Throws as require_tiles.
[[nodiscard]] GemmPlan plan_gemm(const GemmShape& shape, const PlanDevice& device);
[[nodiscard]] GemmPlan plan_gemm_tile(const GemmShape& shape, GemmTileSize tile);

// Throws Error(kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const GemmArgs& args);

// plan: plan_gemm of the same shape; launches of experts need the tile that their groups were made with.
struct AnyGemm {
  static constexpr Kernel kNames[] = {{"any_gemm<bf16>"}, {"any_gemm<mxfp8>"}, {"any_gemm<mxfp4>"}, {"any_gemm<q8_0>"}};
  static constexpr Kernel kGateUp{"any_gemm<gate_up>"};
  static void launch(const GemmArgs& args, const GemmPlan& plan, const Launch& on);
};

// Dense matrix products for 9 to 256 tokens, where a GEMM's row blocks would leave most of a card idle: K is split
// among CTAs too, and whoever reads the result adds the splits. The kernel stands in arch/sm90/kernels.h.
inline constexpr int kSplitRowTiles = 8;                   // of 16 rows, per CTA: two warpgroups
inline constexpr int kSplitTokens[] = {32, 64, 128, 256};  // that a CTA may take
inline constexpr int kSplitRingBytes = 200 * 1024;         // at most
inline constexpr int kSplitMaxTokens = 256;                // beyond, GEMMs have row blocks enough
inline constexpr int kMaxSplits = 8;
inline constexpr int kSplitWeightBytes = kSplitRowTiles * layout::block_pair_bytes(layout::Packing::kBf16);
inline constexpr int kSplitBarrierBytes = 256;

// sums[s, t, r] = W[r] · x[t] over the s-th part of K. All pointers are device memory.
struct SplitGemmArgs {
  const uint8_t* weights = nullptr;  // [rows, cols] bf16, layout/packed.h, in any order of rows
  const uint16_t* x = nullptr;       // bf16 [tokens, cols] in panels of x_rows rows (layout/wgmma_b.h)
  uint16_t* sums = nullptr;          // [splits] of split_pitch, where place_in_sums says, rows as they are packed
  int rows = 0, cols = 0, tokens = 0;
  int x_rows = 0;  // a multiple of 8
};

// Sums are bf16 (docs/decisions/0011) and lie as warps hold them: by row tile, then by eight tokens, the even ones
// first; of a token rows g and g + 8 of the tile are neighbours.
// Unsigned inside: a signed division by a power of two is several instructions of a kernel, of 64 bits ten.
[[nodiscard]] constexpr int64_t split_pitch(int64_t tokens, int64_t rows) {
  return int64_t{(static_cast<uint32_t>(tokens) + 7) / 8 * 8} * rows;
}
[[nodiscard]] constexpr int64_t place_in_sums(int64_t tokens, int64_t token, int64_t row) {
  const auto eights = (static_cast<uint32_t>(tokens) + 7) / 8, t = static_cast<uint32_t>(token),
             r = static_cast<uint32_t>(row);
  return (int64_t{r / 16} * eights + t / 8) * 128 + ((t % 2 * 4 + t % 8 / 2) * 16 + r % 8 * 2 + r % 16 / 8);
}

// Splits depend on the shape and the card only, and so does the order of a sum: bitwise repeatable, whatever the other
// tokens.
struct SplitCut {
  int tokens = 0;  // of a CTA, at most: an entry of kSplitTokens
  int token_tiles = 0, row_blocks = 0, splits = 0;
  int smem_bytes = 0;
};
struct SplitGemmPlan : Plan {
  SplitCut cut;  // for the kernel
};
// Parts of K: as many as give each SM a CTA, for all tokens that one CTA takes.
[[nodiscard]] int split_count(int64_t rows, int64_t cols, int sms);
// Throws Error(kUnsupported) for a shape that has no tiles, or more than kSplitMaxTokens.
[[nodiscard]] SplitGemmPlan plan_split_gemm(const GemmShape& shape, int sms);

// Stages of a CTA's ring, 64 k of both operands each.
[[nodiscard]] constexpr int split_stages(int tile_tokens) {
  return kSplitRingBytes / (tile_tokens * 128 + kSplitWeightBytes);
}
[[nodiscard]] constexpr int split_shared_bytes(int tile_tokens) {  // 1024: to align the ring
  return 1024 + split_stages(tile_tokens) * (tile_tokens * 128 + kSplitWeightBytes) + kSplitBarrierBytes;
}

// Throws Error(kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const SplitGemmArgs& args);

}  // namespace nibble::backend::cuda
