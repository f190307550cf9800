#include "backend/cuda/dense/gemv_plan.h"

#include "backend/cuda/layout/packed.h"
#include "base/error.h"

#include <algorithm>

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

}  // namespace

GemvPlan plan_gemv(const GemvShape& shape, const PlanDevice& device, int stages) {
  GemvPlan plan;
  plan.geometry = layout::geometry(shape.packing, shape.cols);
  if (plan.geometry.slices == 0 || shape.rows <= 0 || shape.rows % layout::kTileRows != 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "cuda: no plan for [{}, {}] on {} SMs", shape.rows, shape.cols, device.sms);
  const int64_t chunk = plan.geometry.chunk_bytes;
  const int64_t partials = int64_t{kPartialSlots} * plan.geometry.slices * layout::kWarpLanes * 16;
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
  plan.grid = std::min<int64_t>(device.sms, tiles);
  plan.threads = (plan.geometry.slices + kProducers + plan.epilogues) * layout::kWarpLanes;
  // Never two of these on one SM: after an early launch they would share it while another SM idles (seen on an H100).
  plan.smem_bytes =
      std::max(fixed + plan.stages * chunk, std::min(device.cta_smem_bytes, device.sm_smem_bytes / 2) / 16 * 16);
  plan.tile = fmt::format(
      "grid {} x {} threads, {} slices, {} epilogues, ring of {} chunks of {} B, {} under way, {} B shared", plan.grid,
      plan.threads, plan.geometry.slices, plan.epilogues, plan.stages, chunk, plan.under_way, plan.smem_bytes);
  return plan;
}

bool balances_in_halves(const GemvShape& shape, const PlanDevice& device) {
  const layout::Geometry tile = layout::geometry(shape.packing, shape.cols);
  if (shape.packing == layout::Packing::kMxfp4 || tile.blocks % 4 != 0) return false;
  const int64_t tiles = shape.rows / layout::kTileRows * shape.matrices;
  return ceil_div(2 * tiles, device.sms) < 2 * ceil_div(tiles, device.sms);
}

void check_gemv(Kernel kernel, const GemvShape& shape, int tokens, bool short_slice) {
  require_shape(shape.rows > 0 && shape.rows % layout::kTileRows == 0, kernel, "rows in tiles of 16", shape.rows);
  require_shape(
      short_slice ? layout::geometry(shape.packing, shape.cols).slices != 0 : layout::slice_blocks(shape.cols) != 0,
      kernel, "columns in up to 16 slices of 6 or 8 blocks of 32", shape.cols);
  require_shape(tokens >= 1 && tokens <= kGemvTokens, kernel, "1 to 8 tokens", tokens);
}

void check_args(const GemvDense::Args& a) {
  const Kernel name = by_packing(GemvDense::kNames, a.packing);
  check_gemv(name, GemvDense::shape_of(a), a.tokens, false);
  require_shape(aligned(a.weights) && aligned(a.in.x) && a.y != nullptr, name, "weights and x 16-byte aligned and y",
                a.tokens);
  require_shape(a.rest == nullptr || a.packing != layout::Packing::kMxfp4, name,
                "one y of MXFP4 weights, whose tiles are one chunk", a.tokens);
  require_shape(a.tiles == nullptr || (a.packing == layout::Packing::kBf16 && a.rest == nullptr && a.listed != nullptr),
                GemvDense::kListed, "bf16 weights, one y and a count of the tiles", a.tokens);
}

void check_args(const GemvQkv::Args& a) {
  const Kernel name = by_packing(GemvQkv::kNames, a.packing);
  check_gemv(name, GemvQkv::shape_of(a), a.tokens, false);
  require_pages(a.kv.type);
  require_shape(aligned(a.weights) && aligned(a.in.x) && a.q != nullptr && a.bias != nullptr && a.cosine != nullptr &&
                    a.sine != nullptr && a.kv_slots != nullptr && a.kv.keys != nullptr && a.kv.values != nullptr,
                name, "weights and x 16-byte aligned, q, bias, rope table, slots and pages", a.tokens);
}

void check_args(const PackArgs& a) {
  constexpr Kernel kName{"pack_weights"};
  check_gemv(kName, {.rows = a.rows, .cols = a.cols, .packing = a.packing}, 1, true);
  require_shape(a.order != layout::RowOrder::kHeads64 || a.rows % 64 == 0, kName, "heads of 64 rows", a.rows);
  require_shape(aligned(a.values) && aligned(a.packed) &&
                    (!layout::has_mx_blocks(a.packing) || (a.scales != nullptr && a.bad_scales != nullptr)),
                kName, "values and packed 16-byte aligned, scales and bad_scales", a.rows);
}

void throw_device_error(const char* what, const char* reason) {
  throw Error(Code::kDevice, "cuda: {}: {}", what, reason);
}

}  // namespace nibble::backend::cuda
