// Nibble's: equal token masks of different grammars are one in memory. What any JSON needs is most of every schema's
// grammar, tens of megabytes for a vocabulary of 200 000 tokens.
#ifndef NIBBLE_XGRAMMAR_MASK_POOL_H_
#define NIBBLE_XGRAMMAR_MASK_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "compiled_grammar_impl.h"

namespace xgrammar {

// Thread-safe. Copies share one; masks may outlive it.
class MaskPool {
 public:
  using Mask = std::shared_ptr<const AdaptiveTokenMask>;

  Mask Share(const AdaptiveTokenMask& mask) {
    const uint64_t hash = Hash(mask);
    std::vector<Mask> seen;  // if one goes while we look, it goes after the lock
    const std::lock_guard lock(state_->mutex);
    const auto [begin, end] = state_->masks.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      Mask known = it->second.lock();
      if (known && Equal(*known, mask)) return known;
      seen.push_back(std::move(known));
    }
    const size_t bytes = sizeof(mask) + 16 * sizeof(void*) + MemorySize(mask);
    const auto forget = [state = state_, hash, bytes](const AdaptiveTokenMask* gone) {
      {
        const std::lock_guard lock(state->mutex);
        const auto [first, last] = state->masks.equal_range(hash);
        for (auto it = first; it != last;) it = it->second.expired() ? state->masks.erase(it) : std::next(it);
        state->bytes -= bytes;
      }
      delete gone;
    };
    Mask shared(new AdaptiveTokenMask(mask), forget);
    state_->masks.emplace(hash, shared);
    state_->bytes += bytes;
    return shared;
  }

  // Of all masks that somebody holds.
  size_t Bytes() const { return state_->bytes; }

 private:
  struct State {
    std::mutex mutex;
    std::unordered_multimap<uint64_t, std::weak_ptr<const AdaptiveTokenMask>> masks;  // guarded by mutex
    std::atomic<size_t> bytes = 0;
  };

  // Of the sizes and some samples: equality is compared anyway.
  static uint64_t Hash(const AdaptiveTokenMask& mask) {
    uint64_t hash = static_cast<uint64_t>(mask.store_type);
    const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29; };
    for (const auto* list : {&mask.accepted_indices, &mask.rejected_indices, &mask.uncertain_indices}) {
      mix(list->size());
      for (size_t i = 0; i < list->size(); i += 1 + list->size() / 64) mix((*list)[i]);
    }
    return hash;
  }
  static bool Equal(const AdaptiveTokenMask& a, const AdaptiveTokenMask& b) {
    return a.store_type == b.store_type && a.accepted_indices == b.accepted_indices &&
           a.rejected_indices == b.rejected_indices && a.uncertain_indices == b.uncertain_indices &&
           a.accepted_bitset == b.accepted_bitset;
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace xgrammar

#endif  // NIBBLE_XGRAMMAR_MASK_POOL_H_
