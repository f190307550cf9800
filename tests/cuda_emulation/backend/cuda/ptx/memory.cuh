#pragma once
// Host twin of ptx/memory.cuh.

#include "backend/cuda/emulation/device.h"
#include "base/random.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace nibble::backend::cuda::ptx {

inline int add_acq_rel(int* global, int value) {
  *global += value;
  return *global - value;
}

inline void add_release(int* global, int value) {
  *global += value;
  emulation::made_progress();
}
inline int load_acquire(const int* global) {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
  return *global;
}

template <class T>
T load_relaxed(const T* global) {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
  return *global;
}

inline float load_l2(const float* global) { return *global; }
inline float4 load_l2x4(const float* global) { return {global[0], global[1], global[2], global[3]}; }

inline uint2 load_once8(const void* global, uint64_t /*policy*/) { return *static_cast<const uint2*>(global); }

inline void prefetch_l2(const void* /*global*/) {}

// A store to another card lands late: some other word of those that are on their way with each word
// that is read, at random, but of two stores to a word the first one first, and a release after all that were before
// it.
struct LateStore {
  uint64_t* to;
  uint64_t word;
  bool release = false;
};
inline std::vector<LateStore> late_stores;
inline uint64_t late_draws = 0;

inline void land_one() {
  if (late_stores.empty()) return;
  size_t which = philox(1, late_draws++)[0] % late_stores.size();
  for (size_t i = which; i-- > 0;)
    if (late_stores[i].to == late_stores[which].to) which = i;
  const size_t first = late_stores[which].release ? 0 : which;
  const auto from = late_stores.begin() + static_cast<std::ptrdiff_t>(first);
  const auto to = late_stores.begin() + static_cast<std::ptrdiff_t>(which) + 1;
  for (auto store = from; store != to; ++store) *store->to = store->word;
  late_stores.erase(from, to);
}
// All of them; the test's, once its kernels have run.
inline void land_stores() {
  while (!late_stores.empty()) land_one();
}

inline void store_peer2(uint64_t* global, uint64_t first, uint64_t second) {
  late_stores.push_back({global, first});
  late_stores.push_back({global + 1, second});
  emulation::made_progress();
}
inline void load_peer2(const uint64_t* global, uint64_t& first, uint64_t& second) {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
  if (!late_stores.empty()) emulation::made_progress();
  land_one();
  first = global[0];
  land_one();
  second = global[1];
}

inline void store_release_system(uint64_t* global, uint64_t word) {
  late_stores.push_back({global, word, true});
  emulation::made_progress();
}
inline uint64_t load_acquire_system(const uint64_t* global) {
  bool others = false;  // have run
  emulation::wait_until([&] { return std::exchange(others, true); });
  if (!late_stores.empty()) emulation::made_progress();
  land_one();
  return *global;
}
inline int load_host(const int* word) { return *word; }

inline void fence_system() {}

}  // namespace nibble::backend::cuda::ptx
