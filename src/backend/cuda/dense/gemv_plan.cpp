#include "backend/cuda/dense/gemv_plan.h"

#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

constexpr int kScratchBytes = 1024;  // gemv.cuh: barriers, routes, squares
constexpr int kProducers = 1;
constexpr int kMinStages = 2;
constexpr int kMaxStages = 8;
constexpr int kManyTiles = 32;  // of a CTA: their start and end do not matter

// Chunks in the ring, as was fastest on an H200 (kernel_bench, 2026-11). Many tiles per CTA: enough to keep DRAM busy,
// and no more, or the SMs' streams disturb each other. Few: MXFP4's are large, and a longer ring only delays the first
// tile; the smaller chunks of the others must all be under way.
int wanted_stages(layout::Packing packing, int64_t tiles_per_cta) {
  if (tiles_per_cta >= kManyTiles) return 3;
  return packing == layout::Packing::kMxfp4 ? 2 : 6;
}

// How many chunks of the ring may be asked for and not there. So many bytes keep DRAM busy; more would wait in its
// queue, and after them whatever the kernel before still wants, if it still runs (docs/decisions/0040-few-tokens.md).
int chunks_under_way(int64_t chunk_bytes, int64_t tiles_per_cta, int stages, bool chained) {
  constexpr int64_t kBytes = 64 << 10;
  if (!chained || tiles_per_cta >= kManyTiles) return stages;
  return static_cast<int>(std::clamp<int64_t>(kBytes / chunk_bytes, kMinStages, stages));
}

void require(bool holds, Code code, const std::string& what, const std::string& args) {
  if (!holds) throw Error(code, "cuda: {}: {}", what, args);
}

// The limits that every launch shares.
void check_matrix(const GemvShape& shape, int tokens, const std::string& args) {
  require(shape.rows > 0 && shape.rows % layout::kTileRows == 0 && layout::slice_blocks(shape.cols) != 0,
          Code::kUnsupported, "want rows % 16 = 0 and columns in up to 16 slices of 6 or 8 blocks of 32", args);
  require(tokens >= 1 && tokens <= kGemvTokens, Code::kUnsupported, "want 1 to 8 tokens", args);
}
// Checks matrices whose first slice may be short.
void check_down(const GemvShape& shape, int tokens, const std::string& args) {
  require(
      shape.rows > 0 && shape.rows % layout::kTileRows == 0 && layout::geometry(shape.packing, shape.cols).slices != 0,
      Code::kUnsupported,
      "want rows % 16 = 0 and columns in up to 16 slices of 6 or 8 blocks of 32, the first shorter or not", args);
  require(tokens >= 1 && tokens <= kGemvTokens, Code::kUnsupported, "want 1 to 8 tokens", args);
}

void check_choice(const ExpertChoice& c, int tokens, const std::string& args) {
  require(c.topk >= 1 && tokens * c.topk <= kGemvRoutes, Code::kUnsupported, "want tokens * topk in 1 to 32", args);
  require(c.experts >= c.topk && c.experts <= kGemvExperts && c.experts % 4 == 0, Code::kUnsupported,
          "want topk to 128 experts, a multiple of 4", args);
  require(c.logits != nullptr, Code::kInvalidRequest, "want router logits", args);
}

int64_t packed(layout::Packing packing, int64_t rows, int64_t cols) {
  return layout::packed_bytes(packing, rows, cols);
}

int64_t bytes_in(const RowsIn& in, int64_t values) {
  const int arrays =
      1 + (in.delta[0] != nullptr ? 1 : 0) + (in.delta[1] != nullptr ? 1 : 0) + (in.sum != nullptr ? 1 : 0);
  return 4 * arrays * values;
}

}  // namespace

std::string GemvPlan::to_string() const {
  return fmt::format(
      "grid {} x {} threads, {} slices, {} epilogues, ring of {} chunks of {} B, {} under way, {} B shared", grid,
      threads, tile.slices, epilogues, stages, tile.chunk_bytes, under_way, smem_bytes);
}

GemvPlan plan_gemv(const GemvShape& shape, const GemvDevice& device, int stages) {
  GemvPlan plan{.tile = layout::geometry(shape.packing, shape.cols)};
  if (plan.tile.slices == 0 || shape.rows <= 0 || shape.rows % layout::kTileRows != 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "cuda: no plan for [{}, {}] on {} SMs", shape.rows, shape.cols, device.sms);
  const int64_t chunk = plan.tile.chunk_bytes;
  const int64_t partials = int64_t{kPartialSlots} * plan.tile.slices * layout::kWarpLanes * 16;
  const auto fits = [&](int epilogues) {
    return (device.cta_smem_bytes - kScratchBytes - epilogues * partials) / chunk;
  };
  plan.epilogues = fits(kGemvEpilogues) >= kMinStages ? kGemvEpilogues : 1;
  const int64_t fixed = kScratchBytes + plan.epilogues * partials, most = fits(plan.epilogues);
  if (most < kMinStages)
    throw Error(Code::kUnsupported, "cuda: [{}, {}]: want {} B of shared memory per block, the card has {}", shape.rows,
                shape.cols, fixed + kMinStages * chunk, device.cta_smem_bytes);
  const int64_t tiles = shape.rows / layout::kTileRows * shape.matrices;
  const int64_t wanted = stages != 0 ? stages : wanted_stages(shape.packing, tiles / device.sms);
  plan.stages = static_cast<int>(std::clamp<int64_t>(wanted, kMinStages, std::min<int64_t>(most, kMaxStages)));
  plan.under_way = chunks_under_way(chunk, tiles / device.sms, plan.stages, device.chained);
  plan.grid = static_cast<int>(std::min<int64_t>(device.sms, tiles));
  plan.threads = (plan.tile.slices + kProducers + plan.epilogues) * layout::kWarpLanes;
  // Never two of these on one SM: after an early launch they would share it while another SM idles (seen on an H100).
  plan.smem_bytes =
      std::max(fixed + plan.stages * chunk, std::min(device.cta_smem_bytes, device.sm_smem_bytes / 2) / 16 * 16);
  return plan;
}

bool balances_in_halves(const GemvShape& shape, const GemvDevice& device) {
  const layout::Geometry tile = layout::geometry(shape.packing, shape.cols);
  if (shape.packing == layout::Packing::kMxfp4 || tile.blocks % 4 != 0) return false;
  const int64_t tiles = shape.rows / layout::kTileRows * shape.matrices;
  return ceil_div(2 * tiles, device.sms) < 2 * ceil_div(tiles, device.sms);
}

GemvCost cost(const DenseArgs& a) {
  const int64_t out = int64_t{a.tokens} * a.rows;
  return {.bytes = packed(a.packing, a.rows, a.cols) + (a.bias != nullptr ? 2 * int64_t{a.rows} : 0) +
                   bytes_in(a.in, int64_t{a.tokens} * a.cols) + (a.rest != nullptr ? 8 : 4) * out,
          .flops = 2 * out * a.cols};
}

GemvCost cost(const QkvArgs& a) {
  const int64_t tokens = a.tokens;
  return {.bytes = packed(a.packing, a.rows(), a.cols) + 2 * int64_t{a.rows()} + bytes_in(a.in, tokens * a.cols) +
                   tokens * (4 * kGemvHeadDim * a.heads + 2 * a.kv_heads * page_row_bytes(a.kv.type, kGemvHeadDim)),
          .flops = 2 * tokens * a.rows() * a.cols};
}

GemvCost cost(const RouterArgs& a) {
  const int64_t in = int64_t{a.tokens} * a.hidden, out = int64_t{a.tokens} * a.experts;
  return {.bytes = 2 * (int64_t{a.experts} + 1) * a.hidden + 2 * int64_t{a.experts} +
                   ((a.normed != nullptr ? 18 : 14) + (a.rest != nullptr ? 4 : 0)) * in + 4 * out,
          .flops = 2 * out * a.hidden};
}

GemvCost cost(const MoeUpArgs& a, int distinct_experts) {
  const int64_t rows = 2 * int64_t{a.inter}, routes = int64_t{a.tokens} * a.choice.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(rows, a.hidden) + 2 * rows) +
                   int64_t{a.tokens} * (2 * a.hidden + 4 * a.choice.experts) + 2 * routes * a.inter,
          .flops = 2 * routes * rows * a.hidden};
}

GemvCost cost(const MoeDownArgs& a, int distinct_experts) {
  const int64_t pairs = int64_t{a.tokens} * a.choice.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   pairs * (2 * a.inter + 8 * a.hidden) + 4 * int64_t{a.tokens} * (a.choice.experts + a.hidden),
          .flops = 2 * pairs * a.hidden * a.inter};
}

GemvCost cost(const GemvDownArgs& a, int distinct_experts) {
  const int64_t pairs = int64_t{a.tokens} * a.choice.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   2 * pairs * a.inter + 4 * int64_t{a.tokens} * (a.choice.experts + a.parts * a.hidden),
          .flops = 2 * pairs * a.hidden * a.inter};
}

void check_args(const DenseArgs& a) {
  const std::string args = fmt::format("dense [{}, {}], {} tokens, weights {}, x {}, y {}", a.rows, a.cols, a.tokens,
                                       fmt::ptr(a.weights), fmt::ptr(a.in.x), fmt::ptr(a.y));
  check_matrix({a.rows, a.cols}, a.tokens, args);
  require(aligned(a.weights) && aligned(a.in.x) && a.y != nullptr, Code::kInvalidRequest,
          "want weights and x 16-byte aligned and y", args);
  require(a.rest == nullptr || a.packing != layout::Packing::kMxfp4, Code::kUnsupported,
          "want one y of MXFP4 weights, whose tiles are one chunk", args);
}

void check_args(const QkvArgs& a) {
  const std::string args =
      fmt::format("qkv {} + 2 * {} heads of 64, {} columns, {} tokens, weights {}, x {}, q {}", a.heads, a.kv_heads,
                  a.cols, a.tokens, fmt::ptr(a.weights), fmt::ptr(a.in.x), fmt::ptr(a.q));
  check_matrix({a.rows(), a.cols}, a.tokens, args);
  require(page_type(a.kv.type).alone, Code::kUnsupported, "want KV pages whose values stand alone", args);
  require(aligned(a.weights) && aligned(a.in.x) && a.q != nullptr && a.bias != nullptr && a.cosine != nullptr &&
              a.sine != nullptr && a.kv_slots != nullptr && a.kv.keys != nullptr && a.kv.values != nullptr,
          Code::kInvalidRequest, "want weights and x 16-byte aligned, q, bias, rope table, slots and pages", args);
}

void check_args(const RouterArgs& a) {
  const std::string args = fmt::format("router [{}, {}], {} tokens, weight {}, x {}, logits {}", a.experts, a.hidden,
                                       a.tokens, fmt::ptr(a.weight), fmt::ptr(a.x), fmt::ptr(a.logits));
  require(a.tokens >= 1 && a.tokens <= kGemvTokens && a.experts >= 1 && a.hidden >= 8 && a.hidden % 8 == 0 &&
              a.hidden <= kRouterHidden,
          Code::kUnsupported, "want 1 to 8 tokens and up to 9216 columns, a multiple of 8", args);
  require((a.delta == nullptr) == (a.sum == nullptr) && (a.delta != nullptr || a.rest == nullptr),
          Code::kInvalidRequest, "want a sum where there is a delta", args);
  require(aligned(a.weight) && aligned(a.norm) && aligned(a.x) && (a.delta == nullptr || aligned(a.delta)) &&
              (a.rest == nullptr || aligned(a.rest)) && (a.sum == nullptr || aligned(a.sum)) &&
              (a.normed == nullptr || aligned(a.normed)) && aligned(a.rounded) && a.bias != nullptr &&
              a.logits != nullptr,
          Code::kInvalidRequest,
          "want weight, norm, x, delta, rest, sum, normed and rounded 16-byte aligned, bias and logits", args);
}

void check_args(const MoeUpArgs& a) {
  const std::string args =
      fmt::format("moe_up hidden {}, inter {}, topk {} of {}, {} tokens, weights {}, x {}, u {}", a.hidden, a.inter,
                  a.choice.topk, a.choice.experts, a.tokens, fmt::ptr(a.weights), fmt::ptr(a.x), fmt::ptr(a.u));
  check_matrix({2 * int64_t{a.inter}, a.hidden}, a.tokens, args);
  check_choice(a.choice, a.tokens, args);
  require(aligned(a.weights) && aligned(a.x) && aligned(a.u) && a.bias != nullptr, Code::kInvalidRequest,
          "want weights, x and u 16-byte aligned, and bias", args);
}

void check_args(const MoeDownArgs& a) {
  const std::string args =
      fmt::format("moe_down hidden {}, inter {}, topk {} of {}, {} tokens, weights {}, u {}, y {}", a.hidden, a.inter,
                  a.choice.topk, a.choice.experts, a.tokens, fmt::ptr(a.weights), fmt::ptr(a.u), fmt::ptr(a.y));
  check_down({a.hidden, a.inter}, a.tokens, args);
  check_choice(a.choice, a.tokens, args);
  require(aligned(a.weights) && aligned(a.u) && a.bias != nullptr && a.y != nullptr && a.sums != nullptr &&
              a.finished != nullptr,
          Code::kInvalidRequest, "want weights and u 16-byte aligned, bias, y, sums and finished", args);
}

void check_args(const GemvDownArgs& a) {
  const std::string args = fmt::format(
      "moe_down hidden {}, inter {}, topk {} of {}, {} tokens, {} parts, weights {}, u {}, y {}", a.hidden, a.inter,
      a.choice.topk, a.choice.experts, a.tokens, a.parts, fmt::ptr(a.weights), fmt::ptr(a.u), fmt::ptr(a.y[0]));
  check_down({a.hidden, a.inter}, a.tokens, args);
  check_choice(a.choice, a.tokens, args);
  require(a.tokens * a.choice.topk <= kGemvTokens, Code::kUnsupported, "want tokens * topk in 1 to 8", args);
  require(a.choice.own.all(), Code::kUnsupported, "want all experts", args);
  require(a.parts >= 1 && a.parts <= std::min(2, a.choice.topk), Code::kUnsupported, "want 1 or 2 parts, at most topk",
          args);
  require(aligned(a.weights) && aligned(a.u) && a.y[0] != nullptr && a.bias != nullptr &&
              (a.parts == 1 || a.y[1] != nullptr),
          Code::kInvalidRequest, "want weights and u 16-byte aligned, bias, and y for each part", args);
}

void check_args(const PackArgs& a) {
  const std::string args = fmt::format("pack [{}, {}], values {}, scales {}, packed {}", a.rows, a.cols,
                                       fmt::ptr(a.values), fmt::ptr(a.scales), fmt::ptr(a.packed));
  check_down({.rows = a.rows, .cols = a.cols, .packing = a.packing}, 1, args);
  require(a.order != layout::RowOrder::kHeads64 || a.rows % 64 == 0, Code::kUnsupported, "want heads of 64 rows", args);
  require(aligned(a.values) && aligned(a.packed) &&
              (a.packing == layout::Packing::kBf16 || (a.scales != nullptr && a.bad_scales != nullptr)),
          Code::kInvalidRequest, "want values and packed 16-byte aligned, scales and bad_scales", args);
}

void throw_device_error(const char* what, const char* reason) {
  throw Error(Code::kDevice, "cuda: {}: {}", what, reason);
}

std::string RowWarpsPlan::to_string() const {
  return fmt::format("grid {} x {} warps, {}, up to {} columns, {} B shared", grid, warps,
                     runs ? "equal runs of the row tiles" : "a row tile each", rows, smem_bytes);
}

RowWarpsPlan plan_row_warps(int64_t cols, const RowWarpsWish& wish, const GemvDevice& device) {
  const int blocks = layout::slices_of(cols).blocks;
  if (blocks == 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "cuda: no plan for experts of {} columns on {} SMs", cols, device.sms);
  int64_t bytes = 0;
  // Warps before columns, down to 8. A warp has stages - 1 slices of 1.6 KB under way: 3.2 KB of `grouped`, 26 KB an SM
  // with 8 warps. An A100 (2 TB/s, 108 SMs) needs 15 to 18 KB for a latency of 0.8 to 1 us, an H100 20 to 24.
  for (const auto& [most, least] : {std::pair{16, 8}, {4, 4}})
    for (int rows = wish.rows; rows > 0; rows -= kMmaColumns)
      for (int own = most; own >= least; own /= 2) {
        if (wish.warps != 0 && own != wish.warps) continue;
        bytes = int64_t{rows} * row_pitch(cols) + kRowExtraBytes +
                int64_t{own} * (wish.stages * layout::slice_bytes(blocks) + (wish.runs ? kRowPartBytes : 0));
        if (bytes <= device.cta_smem_bytes)
          return {.grid = device.sms, .warps = own, .rows = rows, .runs = wish.runs, .smem_bytes = bytes};
      }
  throw Error(Code::kUnsupported, "cuda: experts of {} columns: want {} B of shared memory per block, the card has {}",
              cols, bytes, device.cta_smem_bytes);
}

}  // namespace nibble::backend::cuda
