#include "backend/cuda/comm/sums.h"

#include "backend/cuda/dense/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

// Null is.
void require_aligned(const void* at, Kernel kernel, std::string_view want) {
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % 16);
  require_shape(beyond == 0, kernel, want, beyond);
}

template <class Link>
void check_ranks(const Link& link, Kernel kernel) {
  require_shape(link.shape.ranks >= 2 && link.shape.ranks <= kMaxPushRanks, kernel, "2 to 8 ranks", link.shape.ranks);
  require_shape(link.rank >= 0 && link.rank < link.shape.ranks, kernel, "a rank of these", link.rank);
}

void check_link(const PushLink& link, Kernel kernel) {
  check_ranks(link, kernel);
  require_shape(link.shape.words > 0 && link.shape.words % kSweptWords == 0, kernel, "mailboxes of whole 256 words",
                link.shape.words);
}

Plan plan_ctas(int64_t wanted, int most) {
  const int64_t ctas = std::clamp<int64_t>(wanted, 1, most);
  return {.tile = fmt::format("4 words per thread, {} threads, {} CTAs", kPushThreads, ctas),
          .grid = ctas,
          .threads = kPushThreads};
}

}  // namespace

Plan plan_push(int64_t words, int sms, int ranks_on_card) {
  constexpr int64_t kCtaWords = int64_t{kPushThreads} * kVectorWords;
  return plan_ctas(ceil_div(words, kCtaWords), most_ctas(sms, ranks_on_card));
}

Plan plan_pick(int rows, int sms, int ranks_on_card) {
  constexpr int kRows = kPushThreads / 32;
  return plan_ctas(ceil_div(rows, kRows), most_ctas(sms, ranks_on_card));
}

PushCost cost(const PushReduce::Args& a) {
  return {.bytes = 8 * a.words * (a.link.shape.ranks - 1), .flops = a.words * (a.link.shape.ranks - 1)};
}

void check_args(const PushReduce::Args& a) {
  const Kernel name = PushReduce::kNames[0];
  check_link(a.link, name);
  require_shape(a.words > 0 && a.words % kVectorWords == 0, name, "whole vectors of 16 bytes", a.words);
  require_shape(a.words <= a.link.shape.words, name, "a message that the mailbox holds", a.words);
  for (const float* const at : {a.rest, static_cast<const float*>(a.into)})
    require_aligned(at, name, "rest and into at multiples of 16 bytes");
  require_aligned(a.values, name, "values at a multiple of 16 bytes");
}

void check_args(const PushCombine::Args& a) {
  const auto& [message, parts] = a;
  const Kernel name = PushCombine::name(parts.of.sums.order);
  check_args(message);
  check_args(parts.of);
  require_shape(parts.first >= 0 && message.values == parts.of.tiles + 8 * parts.first, name,
                "values where the tiles are", parts.first);
  require_shape(2 * message.words + 8 * parts.first <= split_pitch(parts.of.tokens, parts.of.hidden), name,
                "no more than the tiles", message.words);
}

void check_args(const PushGather::Args& a) {
  const Kernel name = PushGather::kName;
  check_link(a.link, name);
  require_shape(a.rows > 0, name, "at least one row", a.rows);
  require_shape(a.width % kVectorWords == 0, name, "rows of whole vectors of 16 bytes", a.width);
  for (int rank = 0; rank < a.link.shape.ranks; ++rank) {
    require_shape(a.first[rank] % kVectorWords == 0, name, "columns from a multiple of 4 on", a.first[rank]);
    require_shape(a.count[rank] % kVectorWords == 0, name, "columns in fours", a.count[rank]);
    require_shape(a.first[rank] >= 0 && a.first[rank] + a.count[rank] <= a.width, name, "columns of the row",
                  a.first[rank]);
    require_shape(a.rows * a.count[rank] <= a.link.shape.words, name, "a message that the mailbox holds",
                  a.rows * a.count[rank]);
  }
  for (const float* const at : {a.own, static_cast<const float*>(a.all)})
    require_aligned(at, name, "rows at multiples of 16 bytes");
}

void check_args(const PushPick::Args& a) {
  const Kernel name = PushPick::kName;
  check_link(a.link, name);
  require_shape(a.rows > 0, name, "at least one row", a.rows);
  require_shape(a.parts > 0 && a.parts <= a.pitch, name, "parts of a row's pitch", a.parts);
  require_shape(kVectorWords * int64_t{a.rows} <= a.link.shape.words, name, "a message that the mailbox holds", a.rows);
}

Plan plan_shares(int64_t words, int sms, int ranks_on_card) {
  return plan_ctas(chunks_of(words), most_ctas(ranks_on_card == 1 ? kShareCtas * sms : sms, ranks_on_card));
}

PushCost cost(const ShareReduce::Args& a) {
  const int64_t ranks = a.link.shape.ranks, chunks = chunks_of(a.words);
  const int64_t own = std::min(a.words, (chunks + ranks - 1) / ranks * kChunkWords);
  return {.bytes = 4 * ((a.sent ? 0 : a.words - own) + own * (ranks - 1)), .flops = own * (ranks - 1)};
}

void check_args(const ShareReduce::Args& a) {
  const Kernel name = ShareReduce::name(DeltaValues::Type::kF32, a.sent);
  const ShareShape& shape = a.link.shape;
  check_ranks(a.link, name);
  require_shape(shape.chunks > 0 && shape.chunks % shape.ranks == 0, name, "as many chunks for every rank",
                shape.chunks);
  require_shape(a.words > 0 && a.words % kVectorWords == 0, name, "whole vectors of 16 bytes", a.words);
  require_shape(a.words <= shape.words(), name, "a message that the box holds", a.words);
  require_aligned(a.values, name, "values at a multiple of 16 bytes");
}

SumPlan plan_sum(const SumShape& shape) {
  const int64_t words = shape.values.words(), bytes = shape.values.bytes();
  using Sending = DeltaValues::Sending;
  const Sending sent = shape.values.sent;
  const SumWay way = shape.by_nccl                ? SumWay::kNccl
                     : sent == Sending::kToAll    ? SumWay::kExchange
                     : sent == Sending::kToOwners ? SumWay::kShares
                                                  : sum_way(shape.ranks, bytes);
  SumPlan plan{.way = way, .kernel = {}, .tile = {}, .cost = {}};
  const auto in_messages_of = [&](int64_t most) {
    plan.launches = (words + most - 1) / most;
    return std::min(words, most);
  };
  switch (plan.way) {
    case SumWay::kPush:
      plan.kernel = shape.combines ? PushCombine::name(*shape.combines) : PushReduce::name(shape.values.type);
      plan.tile = plan_push(in_messages_of(kMessageWords), shape.sms, shape.ranks_on_card).tile;
      plan.cost = cost(PushReduce::Args{.link = {.shape = {.ranks = shape.ranks}}, .words = words});
      break;
    case SumWay::kShares: {
      const ShareShape box = share_shape(shape.ranks);
      plan.kernel = ShareReduce::name(shape.values.type, sent == Sending::kToOwners);
      plan.tile = plan_shares(in_messages_of(box.words()), shape.sms, shape.ranks_on_card).tile;
      plan.cost = cost(ShareReduce::Args{.link = {.shape = box}, .words = words, .sent = sent == Sending::kToOwners});
      break;
    }
    case SumWay::kExchange:
      plan.kernel = PushBarrier::kName;
      plan.tile = "a CTA";
      plan.cost = cost(PushReduce::Args{.link = {.shape = {.ranks = shape.ranks}}, .words = kVectorWords});
      plan.cost.flops = 0;
      break;
    case SumWay::kNccl:
      in_messages_of(kNcclBytes / 4);
      plan.kernel = nccl_reduce_kernel();
      plan.tile = "NCCL's";
      plan.cost = {.bytes = 2 * bytes * (shape.ranks - 1) / shape.ranks,  // a ring's
                   .flops = shape.values.count * (shape.ranks - 1) / shape.ranks};
      break;
  }
  plan.tile += fmt::format(", {} B of each of {} ranks", bytes, shape.ranks);
  return plan;
}

std::optional<SumWay> way_of(std::string_view kernel) {
  for (const std::string_view pushed : {"any_push_reduce", "any_push_combine"})
    if (kernel.starts_with(pushed)) return SumWay::kPush;
  if (kernel.starts_with("any_share_")) return SumWay::kShares;
  if (kernel == PushBarrier::kName.name) return SumWay::kExchange;
  if (kernel == nccl_reduce_kernel().name) return SumWay::kNccl;
  return std::nullopt;
}

}  // namespace nibble::backend::cuda
