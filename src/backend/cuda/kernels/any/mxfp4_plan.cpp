#include "backend/cuda/kernels/any/mxfp4_plan.h"

#include "base/error.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

constexpr int64_t kInFlightBytes = 105'000;  // rings of 49, 73, 98, 171 KB: more was slower on an H100 (2026-11)
constexpr int kBarrierBytes = 256;
constexpr int kExtraWarps = 2;  // producer, epilogue
constexpr int kMinStages = 2;
constexpr int kMaxStages = 8;

int64_t partial_bytes(int slices) { return int64_t{2} * slices * layout::kWarpLanes * 16; }

bool aligned(const void* p) { return p != nullptr && reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void require(bool holds, Code code, const std::string& what, const std::string& args) {
  if (!holds) throw Error(code, "[cuda] {}: {}", what, args);
}

// The limits that every launch shares.
void check_matrix(const GemvShape& shape, int tokens, const std::string& args) {
  require(shape.rows > 0 && shape.rows % layout::kTileRows == 0 && layout::slice_blocks(shape.cols) != 0,
          Code::kUnsupported, "want rows % 16 = 0 and columns in up to 16 slices of 6 or 8 blocks of 32", args);
  require(tokens >= 1 && tokens <= kGemvTokens, Code::kUnsupported, "want 1 to 8 tokens", args);
}

void check_routes(int tokens, int topk, const std::string& args) {
  require(topk >= 1 && tokens * topk <= kGemvRoutes, Code::kUnsupported, "want tokens * topk in 1 to 32", args);
}

}  // namespace

std::string GemvPlan::to_string() const {
  return fmt::format("grid {} x {} threads, {} slices, ring of {} tiles of {} B, {} B shared", grid, threads, slices,
                     stages, tile_bytes, smem_bytes);
}

GemvPlan plan_gemv(const GemvShape& shape, const GemvDevice& device, int stages) {
  GemvPlan plan{.slices = layout::slices(shape.cols), .tile_bytes = layout::tile_bytes(shape.cols)};
  if (plan.slices == 0 || shape.rows <= 0 || shape.rows % layout::kTileRows != 0 || device.sms <= 0)
    throw Error(Code::kUnsupported, "[cuda] no plan for MXFP4 [{}, {}] on {} SMs", shape.rows, shape.cols, device.sms);
  const int64_t fixed = partial_bytes(plan.slices) + kBarrierBytes;
  const int64_t fits = (device.cta_smem_bytes - fixed) / plan.tile_bytes;
  if (fits < kMinStages)
    throw Error(Code::kUnsupported, "[cuda] MXFP4 [{}, {}]: want {} B of shared memory per block, the card has {}",
                shape.rows, shape.cols, fixed + kMinStages * plan.tile_bytes, device.cta_smem_bytes);
  const int64_t wanted = stages != 0 ? stages : std::min<int64_t>(kInFlightBytes / plan.tile_bytes, kMaxStages);
  plan.stages = static_cast<int>(std::clamp<int64_t>(wanted, kMinStages, std::min<int64_t>(fits, kMaxStages)));
  plan.grid = static_cast<int>(std::min<int64_t>(device.sms, shape.rows / layout::kTileRows * shape.matrices));
  plan.threads = (plan.slices + kExtraWarps) * layout::kWarpLanes;
  // Never two of these on one SM: behind an early launch they would share it while another SM idles (seen on an H100).
  plan.smem_bytes = std::max(fixed + plan.stages * plan.tile_bytes,
                             std::min(device.cta_smem_bytes, device.sm_smem_bytes / 2) / 16 * 16);
  return plan;
}

GemvCost cost(const DenseArgs& a) {
  const int64_t out = int64_t{a.tokens} * a.rows;
  return {.bytes = layout::packed_bytes(a.rows, a.cols) + (a.bias != nullptr ? 2 * int64_t{a.rows} : 0) +
                   2 * int64_t{a.tokens} * a.cols + (a.into == Into::kAdd ? 8 : 4) * out,
          .flops = 2 * out * a.cols};
}

GemvCost cost(const MoeUpArgs& a, int distinct_experts) {
  const int64_t rows = 2 * int64_t{a.inter}, routes = int64_t{a.tokens} * a.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(rows, a.hidden) + 2 * rows) +
                   2 * int64_t{a.tokens} * a.hidden + 2 * routes * a.inter + 4 * routes,
          .flops = 2 * routes * rows * a.hidden};
}

GemvCost cost(const MoeDownArgs& a, int distinct_experts) {
  const int64_t routes = int64_t{a.tokens} * a.topk;
  return {.bytes = distinct_experts * (layout::packed_bytes(a.hidden, a.inter) + 2 * int64_t{a.hidden}) +
                   2 * routes * a.inter + 8 * routes + 8 * int64_t{a.tokens} * a.hidden,
          .flops = 2 * routes * a.hidden * a.inter};
}

void check_args(const DenseArgs& a) {
  const std::string args = fmt::format("dense [{}, {}], {} tokens, weights {}, x {}, y {}", a.rows, a.cols, a.tokens,
                                       fmt::ptr(a.weights), fmt::ptr(a.x), fmt::ptr(a.y));
  check_matrix({a.rows, a.cols}, a.tokens, args);
  require(aligned(a.weights) && aligned(a.x) && a.y != nullptr, Code::kInvalidRequest,
          "want weights and x 16-byte aligned and y", args);
}

void check_args(const MoeUpArgs& a) {
  const std::string args =
      fmt::format("moe_up hidden {}, inter {}, topk {}, {} tokens, weights {}, x {}, u {}", a.hidden, a.inter, a.topk,
                  a.tokens, fmt::ptr(a.weights), fmt::ptr(a.x), fmt::ptr(a.u));
  check_matrix({2 * int64_t{a.inter}, a.hidden}, a.tokens, args);
  check_routes(a.tokens, a.topk, args);
  require(aligned(a.weights) && aligned(a.x) && aligned(a.u) && a.bias != nullptr && a.expert_ids != nullptr,
          Code::kInvalidRequest, "want weights, x and u 16-byte aligned, bias and expert ids", args);
}

void check_args(const MoeDownArgs& a) {
  const std::string args =
      fmt::format("moe_down hidden {}, inter {}, topk {}, {} tokens, {} parts, weights {}, u {}, y {}", a.hidden,
                  a.inter, a.topk, a.tokens, a.parts, fmt::ptr(a.weights), fmt::ptr(a.u), fmt::ptr(a.y));
  check_matrix({a.hidden, a.inter}, a.tokens, args);
  check_routes(a.tokens, a.topk, args);
  require(a.parts >= 1 && a.parts <= std::min(2, a.topk), Code::kUnsupported, "want 1 or 2 parts, at most topk", args);
  require(aligned(a.weights) && aligned(a.u) && a.y != nullptr && a.bias != nullptr && a.expert_ids != nullptr &&
              a.expert_weights != nullptr,
          Code::kInvalidRequest, "want weights and u 16-byte aligned, bias, expert ids, expert weights and y", args);
}

void check_args(const PackArgs& a) {
  const std::string args = fmt::format("pack {} matrices [{}, {}], blocks {}, scales {}, packed {}", a.matrices, a.rows,
                                       a.cols, fmt::ptr(a.blocks), fmt::ptr(a.scales), fmt::ptr(a.packed));
  check_matrix({a.rows, a.cols}, 1, args);
  require(a.matrices > 0 && a.blocks != nullptr && a.scales != nullptr && aligned(a.packed) && a.bad_scales != nullptr,
          Code::kInvalidRequest, "want blocks, scales, packed 16-byte aligned and bad_scales", args);
}

void throw_device_error(const char* what, const char* reason) {
  throw Error(Code::kDevice, "[cuda] {}: {}", what, reason);
}

}  // namespace nibble::backend::cuda
