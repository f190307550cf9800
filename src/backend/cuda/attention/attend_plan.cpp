#include "backend/cuda/attention/attend_plan.h"

#include <algorithm>

#include <fmt/format.h>

namespace nibble::backend::cuda {
namespace {

constexpr int kReservedBytes = 1024;  // of shared memory, by the system, per CTA

}  // namespace

void share_tokens(std::span<const Row> rows, AttendShares& out, int tile_tokens) {
  out.decode.clear();
  out.prefill.clear();
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    if (row.tokens <= kMaxDecodeTokens) {
      for (int32_t i = 0; i < row.tokens; ++i) out.decode.push_back(row.first_token + i);
      continue;
    }
    for (int32_t i = 0; i < row.tokens; i += tile_tokens)
      out.prefill.push_back({row.first_token + i, std::min(row.tokens - i, tile_tokens), static_cast<int32_t>(r),
                             row.context - row.tokens + i});
  }
  std::stable_sort(out.prefill.begin(), out.prefill.end(),
                   [](const AttendTile& a, const AttendTile& b) { return a.first_position < b.first_position; });
}

Plan plan_prefill(int64_t tiles, int64_t kv_heads, const DeviceFacts& /*card*/) {
  return {.tile = fmt::format("{} tokens per CTA, grid {} x {}", kPrefillTokens, tiles, kv_heads),
          .grid = tiles,
          .grid_y = kv_heads};
}

DecodePlan plan_decode(const DecodeShape& shape, const PlanDevice& device) {
  // CTAs that fill the device: up to so many per SM
  const auto fill = [&](const DecodeRing& ring, int64_t per_sm) {
    const int64_t fit = device.sm_smem_bytes / (decode_smem_bytes(shape.row_bytes, ring) + kReservedBytes);
    return std::clamp<int64_t>(fit, 1, per_sm) * device.sms;
  };
  const int64_t units = int64_t{shape.tokens} * shape.kv_heads, large = fill(kDecodeRing, 2);
  const bool lone = units > fill(kSmallDecodeRing, 4);
  const DecodeRing ring = lone ? kLoneDecodeRing : units > large ? kSmallDecodeRing : kDecodeRing;
  const int64_t ctas = lone ? fill(ring, 4) : large;
  const int target = static_cast<int>(std::max<int64_t>(1, ctas / shape.kv_heads));
  DecodePlan plan;
  plan.target = target;
  plan.ring = ring;
  plan.grid = shape.kv_heads;
  plan.grid_y = never_split(shape.window) ? shape.tokens : target + shape.tokens;
  plan.smem_bytes = decode_smem_bytes(shape.row_bytes, ring);
  plan.tile = fmt::format("{} tokens, keys in at most {} chunks, grid {} x {}, {} warps, {} B shared", shape.tokens,
                          target, plan.grid, plan.grid_y, ring.warps, plan.smem_bytes);
  return plan;
}

int most_target(int kv_heads, int row_bytes, const PlanDevice& device) {
  return plan_decode({kMaxDecodeCount, kv_heads, row_bytes}, device).target;
}

}  // namespace nibble::backend::cuda
