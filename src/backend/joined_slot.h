#pragma once
// A slot of the whole model from those of the ranks that share a step.

#include "backend/backend.h"
#include "backend/shards.h"

#include <cstddef>
#include <functional>
#include <span>

namespace nibble::backend {

// peek: of a rank. Logits, and what is on every rank alike, are the first one's. Of no shape where a rank has none.
[[nodiscard]] SlotData joined_slot(Slot slot, const Dims& whole, std::span<const Shard> shards,
                                   const std::function<SlotData(size_t rank, Slot slot)>& peek);

}  // namespace nibble::backend
