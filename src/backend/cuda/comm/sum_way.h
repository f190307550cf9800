#pragma once
// The way in which ranks add up a message, by its length, and its launches. Pure.

#include "backend/cuda/comm/push.h"
#include "backend/cuda/comm/share_box.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::backend::cuda {

enum class SumWay : uint8_t {
  kPush,
  kShares,
  kNccl,
  kExchange,  // two ranks have sent each other their parts: they meet, and who reads the values adds them up
};

// Messages of so many bytes and more are too long for a push, whose every word carries a round and goes to every rank.
// µs on two H200 with NVLink at 369 KB, 1.5, 11.8 and 47 MB: push 5.7, 12.1, 88, 346, shares 8.6, 12.2, 42, 154, and
// where the parts were sent as they were made 7.3, 9.5, 26, 80, NCCL 2.28 9.5, 17.9, 56, 183
// (bench/results/2026-11-26-h200-x2-sent.json). A push that combines takes 17 (o's splits) and 29 (experts) at 1.5 MB,
// any_combine before shares 8 and theirs. More ranks are not measured: a push sends a message 2 (ranks - 1) times, the
// others less than twice.
[[nodiscard]] constexpr int64_t first_long_bytes(int ranks) {
  constexpr int64_t kKilo = 1024;
  return (ranks <= 2 ? 1024 : ranks <= 4 ? 256 : 128) * kKilo;
}

// How ranks that reach each other's memory add up what nobody has sent before.
[[nodiscard]] constexpr SumWay sum_way(int ranks, int64_t bytes) {
  return bytes >= first_long_bytes(ranks) ? SumWay::kShares : SumWay::kPush;
}

// Messages of so many bytes and more are exchanged by two ranks: of 120b 91 tokens. Two H200, µs a step: pushes that
// combine 748 at 64 tokens, 1077 at 128; combining and meeting 816 at 256
// (bench/results/2026-11-26-h200-x2-exchange.json).
inline constexpr int64_t kFirstExchangedBytes = 512 * 1024;

// Whether the kernel that makes bf16 values sends them, and to whom (share_box.h PartPlaces): where shares take them in
// one message. Two ranks send all to each other: as many bytes as parts and sums of shares are.
[[nodiscard]] constexpr DeltaValues::Sending sent_as_made(int ranks, int64_t bytes) {
  using enum DeltaValues::Sending;
  if (bytes > 4 * share_shape(ranks).words()) return kNot;
  if (ranks == 2) return bytes >= kFirstExchangedBytes ? kToAll : kNot;
  return sum_way(ranks, bytes) == SumWay::kShares ? kToOwners : kNot;
}

inline constexpr int64_t kNcclBytes = int64_t{64} << 20;  // of one call
// Which of NCCL's kernels runs is its own choice; their names begin so.
[[nodiscard]] constexpr Kernel nccl_reduce_kernel() { return {"ncclDevKernel_AllReduce"}; }
[[nodiscard]] constexpr Kernel nccl_gather_kernel() { return {"ncclDevKernel_SendRecv"}; }

struct SumShape {
  DeltaValues values;  // wherever they are
  int ranks = 2, ranks_on_card = 1, sms = 1;
  bool by_nccl = false;                           // every message
  std::optional<SplitSums::Order> combines = {};  // the values are still to be made, of this
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
