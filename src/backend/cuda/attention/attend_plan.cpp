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

std::string decode_tile(const DecodePlan& plan, int tokens, int kv_heads) {
  return fmt::format("{} tokens, keys in at most {} chunks, grid {} x {}, {} warps, {} B shared", tokens, plan.target,
                     kv_heads, plan.grid, plan.ring.warps, plan.smem_bytes);
}

std::string prefill_tile(int64_t tiles, int64_t kv_heads) {
  return fmt::format("{} tokens per CTA, grid {} x {}", kPrefillTokens, tiles, kv_heads);
}

DecodePlan plan_decode(const DecodeShape& shape, const AttendDevice& device) {
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
  const int chunks = never_split(shape.window) ? shape.tokens : target + shape.tokens;
  return {.target = target, .grid = chunks, .smem_bytes = decode_smem_bytes(shape.row_bytes, ring), .ring = ring};
}

int most_target(int kv_heads, int row_bytes, const AttendDevice& device) {
  return plan_decode({kMaxDecodeCount, kv_heads, row_bytes}, device).target;
}

AttendCost cost(const AttendShares& shares, std::span<const int32_t> positions, int window, const AttendHeads& heads) {
  const int64_t key_bytes = int64_t{2} * heads.row_bytes * heads.kv_heads;
  const int64_t token_bytes = int64_t{2} * heads.heads * kHeadDim * 4;
  const int64_t key_flops = int64_t{4} * kHeadDim * heads.heads;
  AttendCost total;
  for (const int32_t token : shares.decode) {
    const KeyRange keys = visible_keys(positions[static_cast<size_t>(token)], window);
    total.bytes += (keys.last - keys.first + 1) * key_bytes + token_bytes;
    total.flops += (keys.last - keys.first + 1) * key_flops;
  }
  for (const AttendTile& tile : shares.prefill) {
    const int first = visible_keys(tile.first_position, window).first, last = tile.first_position + tile.tokens - 1;
    total.bytes += (last - first + 1) * key_bytes + tile.tokens * token_bytes;
    for (int i = 0; i < tile.tokens; ++i) {
      const KeyRange keys = visible_keys(tile.first_position + i, window);
      total.flops += (keys.last - keys.first + 1) * key_flops;
    }
  }
  return total;
}

}  // namespace nibble::backend::cuda
