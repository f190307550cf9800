#include "backend/cuda/comm/sum_way.h"

#include "backend/cuda/comm/share.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {

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
      plan.kernel = shape.combines ? push_combine_kernel(*shape.combines) : push_reduce_kernel(shape.values.type);
      plan.tile = plan_push(in_messages_of(kMessageWords), shape.sms, shape.ranks_on_card).to_string();
      plan.cost = cost(PushReduceArgs{.link = {.shape = {.ranks = shape.ranks}}, .words = words});
      break;
    case SumWay::kShares: {
      const ShareShape box = share_shape(shape.ranks);
      plan.kernel = sent == Sending::kToOwners ? kernel::kShareSum : share_reduce_kernel(shape.values.type);
      plan.tile = plan_shares(in_messages_of(box.words()), shape.sms, shape.ranks_on_card).to_string();
      plan.cost = cost(ShareReduceArgs{.link = {.shape = box}, .words = words, .sent = sent == Sending::kToOwners});
      break;
    }
    case SumWay::kExchange:
      plan.kernel = kernel::kPushBarrier;
      plan.tile = "a CTA";
      plan.cost = cost(PushReduceArgs{.link = {.shape = {.ranks = shape.ranks}}, .words = kVectorWords});
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
  for (const DeltaValues::Type type : {DeltaValues::Type::kF32, DeltaValues::Type::kBf16}) {
    if (kernel == push_reduce_kernel(type).name) return SumWay::kPush;
    if (kernel == share_reduce_kernel(type).name) return SumWay::kShares;
  }
  for (const NormDelta delta : {NormDelta::kSplits, NormDelta::kExpertsF32, NormDelta::kExpertsBf16}) {
    if (kernel == push_combine_kernel(delta).name) return SumWay::kPush;
  }
  if (kernel == kernel::kShareSum.name) return SumWay::kShares;
  if (kernel == kernel::kPushBarrier.name) return SumWay::kExchange;
  if (kernel == nccl_reduce_kernel().name) return SumWay::kNccl;
  return std::nullopt;
}

}  // namespace nibble::backend::cuda
