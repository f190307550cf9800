#pragma once
// By which of several ways ranks add up a message. Pure.

#include <cstdint>
#include <string_view>

namespace nibble::backend::cuda {

enum class SumWay : uint8_t { kPush, kNccl };
inline constexpr std::string_view kSumWayNames[] = {"push", "NCCL"};

// From so many bytes on NCCL is faster than a push. Two H100 with NVLink, µs at 369 KB, 1.5 MB and 11.8 MB: push 7.6,
// 19.3, 125, NCCL 2.28 12.8, 22.4, 62.9 (bench/results/2026-11-25-h100-x2-push.json, docs/several-gpus.md); straight
// lines through them meet at 2 MB. More ranks are not measured: a push sends a message 2 (ranks - 1) times, a ring less
// than twice, and begins 12 to 20 µs late.
[[nodiscard]] constexpr int64_t first_nccl_bytes(int ranks) {
  constexpr int64_t kMega = 1 << 20;
  if (ranks <= 2) return 2 * kMega;
  return ranks <= 4 ? kMega : kMega / 2;
}

// nccl: the ranks have it.
[[nodiscard]] constexpr SumWay sum_way(int ranks, int64_t bytes, bool nccl) {
  return nccl && bytes >= first_nccl_bytes(ranks) ? SumWay::kNccl : SumWay::kPush;
}

}  // namespace nibble::backend::cuda
