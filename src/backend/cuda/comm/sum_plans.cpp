#include "backend/cuda/comm/push.h"
#include "backend/cuda/comm/share.h"

#include "backend/cuda/dense/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

bool is_aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

void check_link(const PushLink& link, Kernel kernel) {
  require_shape(link.shape.ranks >= 2 && link.shape.ranks <= kMaxPushRanks, kernel, "2 to 8 ranks", link.shape.ranks);
  require_shape(link.rank >= 0 && link.rank < link.shape.ranks, kernel, "a rank of these", link.rank);
  require_shape(link.shape.words > 0 && link.shape.words % kSweptWords == 0, kernel, "mailboxes of whole 256 words",
                link.shape.words);
}

}  // namespace

std::string PushPlan::to_string() const {
  return fmt::format("4 words per thread, {} threads, {} CTAs", kPushThreads, ctas);
}

PushPlan plan_push(int64_t words, int sms, int ranks_on_card) {
  constexpr int64_t kCtaWords = int64_t{kPushThreads} * kVectorWords;
  const int64_t most = most_ctas(sms, ranks_on_card), ctas = (words + kCtaWords - 1) / kCtaWords;
  return {static_cast<int>(std::clamp<int64_t>(ctas, 1, most))};
}

PushPlan plan_pick(int rows, int sms, int ranks_on_card) {
  constexpr int kRows = kPushThreads / 32;
  return {std::clamp((rows + kRows - 1) / kRows, 1, most_ctas(sms, ranks_on_card))};
}

PushCost cost(const PushReduceArgs& a) {
  return {.bytes = 8 * a.words * (a.link.shape.ranks - 1), .flops = a.words * (a.link.shape.ranks - 1)};
}

PushCost cost(const PushGatherArgs& a) {
  return {.bytes = 8 * a.rows * a.count[a.link.rank] * (a.link.shape.ranks - 1)};
}

PushCost cost(const PushPickArgs& a) {
  return {.bytes = 8 * kVectorWords * int64_t{a.rows} * (a.link.shape.ranks - 1)};
}

void check_args(const PushReduceArgs& a) {
  const Kernel name = kernel::kPushReduce[0];
  check_link(a.link, name);
  require_shape(a.words > 0 && a.words % kVectorWords == 0, name, "whole vectors of 16 bytes", a.words);
  require_shape(a.words <= a.link.shape.words, name, "a message that the mailbox holds", a.words);
  require_shape(is_aligned(a.rest) && is_aligned(a.into), name, "rest and into at multiples of 16 bytes",
                static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.into) % 16));
  require_shape(is_aligned(a.values), name, "values at a multiple of 16 bytes",
                static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.values) % 16));
}

void check_parts(const OwnParts& parts, const void* values, int64_t words) {
  const Kernel name = push_combine_kernel(norm_delta(parts.of));
  check_args(parts.of);
  require_shape(parts.first >= 0 && values == parts.of.tiles + 8 * parts.first, name, "values where the tiles are",
                parts.first);
  require_shape(2 * words + 8 * parts.first <= split_pitch(parts.of.tokens, parts.of.hidden), name,
                "no more than the tiles", words);
}

void check_args(const PushGatherArgs& a) {
  const Kernel name = kernel::kPushGather;
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
  require_shape(is_aligned(a.own) && is_aligned(a.all), name, "rows at multiples of 16 bytes",
                static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.own) % 16));
}

void check_args(const PushPickArgs& a) {
  const Kernel name = kernel::kPushPick;
  check_link(a.link, name);
  require_shape(a.rows > 0, name, "at least one row", a.rows);
  require_shape(a.parts > 0 && a.parts <= a.pitch, name, "parts of a row's pitch", a.parts);
  require_shape(kVectorWords * int64_t{a.rows} <= a.link.shape.words, name, "a message that the mailbox holds", a.rows);
}

PushPlan plan_shares(int64_t words, int sms, int ranks_on_card) {
  return {static_cast<int>(
      std::clamp<int64_t>(chunks_of(words), 1, most_ctas(ranks_on_card == 1 ? kShareCtas * sms : sms, ranks_on_card)))};
}

PushCost cost(const ShareReduceArgs& a) {
  const int64_t ranks = a.link.shape.ranks, chunks = chunks_of(a.words);
  const int64_t own = std::min(a.words, (chunks + ranks - 1) / ranks * kChunkWords);
  return {.bytes = 4 * ((a.sent ? 0 : a.words - own) + own * (ranks - 1)), .flops = own * (ranks - 1)};
}

void check_args(const ShareReduceArgs& a) {
  const Kernel name = kernel::kShareReduce[0];
  const ShareShape& shape = a.link.shape;
  require_shape(shape.ranks >= 2 && shape.ranks <= kMaxPushRanks, name, "2 to 8 ranks", shape.ranks);
  require_shape(a.link.rank >= 0 && a.link.rank < shape.ranks, name, "a rank of these", a.link.rank);
  require_shape(shape.chunks > 0 && shape.chunks % shape.ranks == 0, name, "as many chunks for every rank",
                shape.chunks);
  require_shape(a.words > 0 && a.words % kVectorWords == 0, name, "whole vectors of 16 bytes", a.words);
  require_shape(a.words <= shape.words(), name, "a message that the box holds", a.words);
  const auto at = reinterpret_cast<uintptr_t>(a.values);
  require_shape(at % 16 == 0, name, "values at a multiple of 16 bytes", static_cast<int64_t>(at % 16));
}

}  // namespace nibble::backend::cuda
