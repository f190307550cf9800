#pragma once
// By which of several ways ranks add up a message, and what that launches. Pure.

#include "backend/cuda/comm/delta_values.h"
#include "backend/cuda/comm/push.h"
#include "backend/cuda/comm/share_box.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::backend::cuda {

enum class SumWay : uint8_t { kPush, kShares, kNccl };
inline constexpr std::string_view kSumWayNames[] = {"push", "shares", "NCCL"};

// Whether a message's values are there, or are still to be combined: a push does that on the way, while another way
// mostly takes a launch before it.
enum class SumOf : uint8_t { kValues, kParts };

// Messages of so many bytes and more are too long for a push, whose every word carries a round and goes to every rank.
// µs on two H200 with NVLink at 369 KB, 1.5, 11.8 and 47 MB: push 5.7, 12.1, 88, 346, shares 9.0, 12.1, 48, 182,
// NCCL 2.28 9.5, 17.0, 56, 181 (bench/results/2026-11-26-h200-x2-candidates.json). Combining before shares takes 7.5
// at 1.5 MB and 28 at 11.8: then lines meet at 6 MB, and a push takes 4 at once. More ranks are not measured: a push
// sends a message 2 (ranks - 1) times, the others less than twice.
[[nodiscard]] constexpr int64_t first_long_bytes(int ranks, SumWay way, SumOf of = SumOf::kValues) {
  constexpr int64_t kKilo = 1024;
  const int64_t values = (ranks <= 2 ? 1024 : ranks <= 4 ? 256 : 128) * kKilo;
  if (of == SumOf::kParts) return ranks <= 2 ? 4 * values : 2 * values;
  return way == SumWay::kNccl ? 2 * values : values;
}

// longer: the way that ranks which push short messages have for long ones.
[[nodiscard]] constexpr SumWay sum_way(int ranks, int64_t bytes, SumWay longer, SumOf of = SumOf::kValues) {
  return bytes >= first_long_bytes(ranks, longer, of) ? longer : SumWay::kPush;
}

// Whether who makes values sends each to the rank that adds it up (share_box.h PartPlaces): where shares take them in
// one message. There is nothing that a push would gain.
[[nodiscard]] constexpr bool sends_parts(int ranks, int64_t bytes, SumWay longer) {
  return sum_way(ranks, bytes, longer, SumOf::kParts) == SumWay::kShares && bytes <= 4 * share_shape(ranks).words();
}

inline constexpr int64_t kNcclBytes = int64_t{64} << 20;  // of one call

struct SumShape {
  DeltaValues values;  // wherever they are
  int ranks = 2, ranks_on_card = 1, sms = 1;
  SumWay shorter = SumWay::kPush, longer = SumWay::kShares;
  std::optional<NormDelta> combines = {};  // the values are still to be made, of this
};
struct SumPlan {
  SumWay way;
  Kernel kernel;
  std::string tile;
  int64_t launches = 1;
  PushCost cost;  // of all launches: what the rank with most sends
};
// REQUIRES of what is combined that it is pushed, of what is sent that shares take it at once.
[[nodiscard]] SumPlan plan_sum(const SumShape& shape);
// The way of a kernel that plan_sum() names; none: it is another.
[[nodiscard]] std::optional<SumWay> way_of(std::string_view kernel);

}  // namespace nibble::backend::cuda
