#include "backend/joined_slot.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace nibble::backend {
namespace {

using Parts = std::vector<SlotData>;  // by rank

void append(std::vector<float>& to, const SlotData& from, int64_t first, int64_t count) {
  to.insert(to.end(), from.values.begin() + first, from.values.begin() + first + count);
}

// [tokens, groups, width], of which each rank has so many columns of each group, first in its own.
SlotData joined_columns(const Parts& parts, int64_t groups, std::span<const int64_t> columns) {
  SlotData all{parts.front().shape, {}};
  all.shape.back() = std::accumulate(columns.begin(), columns.end(), int64_t{0});
  for (int64_t g = 0; g < all.shape.front() * groups; ++g)
    for (size_t rank = 0; rank < parts.size(); ++rank)
      append(all.values, parts[rank], g * parts[rank].shape.back(), columns[rank]);
  return all;
}

// Every rank has q | k | v of its heads; of a KV head that several have, the first's are taken.
SlotData joined_qkv(const Parts& parts, const Dims& whole, std::span<const Shard> shards) {
  const int64_t tokens = parts.front().shape.front(), dim = whole.head_dim;
  SlotData all{{tokens, whole.q_width() + 2 * whole.kv_width()}, {}};
  for (int64_t t = 0; t < tokens; ++t) {
    for (const int64_t kv_before : {-1, 0, 1}) {  // q, k, v
      int64_t next_head = 0;
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        const Range heads = kv_before < 0 ? shards[rank].heads : shards[rank].kv_heads;
        if (heads.first < next_head) continue;
        next_head = heads.end();
        const int64_t q_width = shards[rank].heads.count * dim;
        const int64_t at = kv_before < 0 ? 0 : q_width + kv_before * heads.count * dim;
        append(all.values, parts[rank], t * parts[rank].shape.back() + at, heads.count * dim);
      }
    }
  }
  return all;
}

// Of whole experts: an expert's values are its rank's, first in its own row.
SlotData joined_hidden(const Parts& parts, const SlotData& ids, const Dims& whole, std::span<const Shard> shards) {
  SlotData all{parts.front().shape, {}};
  all.shape.back() = whole.inter;
  for (size_t slot = 0; slot < ids.values.size(); ++slot) {
    const auto of = std::ranges::find_if(
        shards, [&](const Shard& shard) { return shard.experts.has(static_cast<int64_t>(ids.values[slot])); });
    const SlotData& part = parts[static_cast<size_t>(of - shards.begin())];
    append(all.values, part, static_cast<int64_t>(slot) * part.shape.back(), whole.inter);
  }
  return all;
}

}  // namespace

SlotData joined_slot(Slot slot, const Dims& whole, std::span<const Shard> shards,
                     const std::function<SlotData(size_t rank, Slot slot)>& peek) {
  const bool split = slot == Slot::kQkv || slot == Slot::kQ || slot == Slot::kAttn || slot == Slot::kExpertHidden;
  if (!split) return peek(0, slot);
  Parts parts;
  for (size_t rank = 0; rank < shards.size(); ++rank) parts.push_back(peek(rank, slot));
  if (std::ranges::any_of(parts, [](const SlotData& part) { return part.shape.empty(); })) return {};
  if (slot == Slot::kQkv) return joined_qkv(parts, whole, shards);
  if (slot == Slot::kExpertHidden && shards.front().whole_experts)
    return joined_hidden(parts, peek(0, Slot::kExpertIds), whole, shards);
  std::vector<int64_t> columns;
  for (const Shard& shard : shards)
    columns.push_back(slot == Slot::kExpertHidden ? shard.inter.count : shard.heads.count * whole.head_dim);
  return joined_columns(parts, slot == Slot::kExpertHidden ? whole.topk : 1, columns);
}

}  // namespace nibble::backend
