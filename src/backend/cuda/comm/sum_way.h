#pragma once
// By which of several ways ranks add up a message, and what that launches. Pure.

#include "backend/cuda/comm/delta_values.h"
#include "backend/cuda/comm/push.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::backend::cuda {

enum class SumWay : uint8_t { kPush, kShares, kNccl };
inline constexpr std::string_view kSumWayNames[] = {"push", "shares", "NCCL"};

// Messages of so many bytes and more are too long for a push, whose every word carries a round and goes to every rank.
// µs on two H200 with NVLink at 369 KB, 1.5, 11.8 and 47 MB: push 7.6, 19.5, 129, 497, shares 9.0, 12.0, 47, 189,
// NCCL 2.30 9.6, 17.3, 56, 180 (bench/results/2026-11-26-h200-x2-sums.json): lines through them meet at 0.5 and 1 MB.
// More ranks are not measured: a push sends a message 2 (ranks - 1) times, the others less than twice.
[[nodiscard]] constexpr int64_t first_long_bytes(int ranks, SumWay way) {
  constexpr int64_t kKilo = 1024;
  const int64_t shares = (ranks <= 2 ? 512 : ranks <= 4 ? 256 : 128) * kKilo;
  return way == SumWay::kNccl ? 2 * shares : shares;
}

// longer: the way that ranks which push short messages have for long ones.
[[nodiscard]] constexpr SumWay sum_way(int ranks, int64_t bytes, SumWay longer) {
  return bytes >= first_long_bytes(ranks, longer) ? longer : SumWay::kPush;
}

inline constexpr int64_t kNcclBytes = int64_t{64} << 20;  // of one call

struct SumShape {
  DeltaValues values;  // wherever they are
  int ranks = 2, ranks_on_card = 1, sms = 1;
  SumWay shorter = SumWay::kPush, longer = SumWay::kShares;
};
struct SumPlan {
  SumWay way;
  Kernel kernel;
  std::string tile;
  int64_t launches = 1;
  PushCost cost;  // of all launches: what the rank with most sends
};
[[nodiscard]] SumPlan plan_sum(const SumShape& shape);
// The way of a kernel that plan_sum() names; none: it is another.
[[nodiscard]] std::optional<SumWay> way_of(std::string_view kernel);

}  // namespace nibble::backend::cuda
