#include "backend/cuda/comm/share.h"

#include <algorithm>

namespace nibble::backend::cuda {

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
