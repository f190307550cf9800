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
// µs on two H100 with NVLink at 369 KB, 1.5 MB and 11.8 MB: push 7.6, 19.3, 125, NCCL 2.28 12.8, 22.4, 62.9
// (bench/results/2026-11-25-h100-x2-push.json, docs/several-gpus.md); straight lines through them meet at 2 MB. Shares
// are not measured: predicted 11, 41 at 1.5 and 11.8 MB. Nor are more ranks: a push sends a message 2 (ranks - 1)
// times, the others less than twice.
[[nodiscard]] constexpr int64_t first_long_bytes(int ranks, SumWay way) {
  constexpr int64_t kMega = 1 << 20;
  const int64_t nccl = ranks <= 2 ? 2 * kMega : ranks <= 4 ? kMega : kMega / 2;
  return way == SumWay::kNccl ? nccl : nccl / 2;
}

// longer: the way that the ranks have for long messages.
[[nodiscard]] constexpr SumWay sum_way(int ranks, int64_t bytes, SumWay longer) {
  return bytes >= first_long_bytes(ranks, longer) ? longer : SumWay::kPush;
}

inline constexpr int64_t kNcclBytes = int64_t{64} << 20;  // of one call

struct SumShape {
  DeltaValues values;  // wherever they are
  int ranks = 2, ranks_on_card = 1, sms = 1;
  SumWay longer = SumWay::kShares;
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
