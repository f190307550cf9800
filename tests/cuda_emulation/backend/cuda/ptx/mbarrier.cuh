#pragma once
// Host twin of ptx/mbarrier.cuh. The 8 bytes in shared memory hold the state, as on the device.

#include "backend/cuda/emulation/device.h"
#include "backend/cuda/ptx/mbarrier.cuh"

#include <cstring>

namespace nibble::backend::cuda::ptx {

struct EmulatedBarrier {
  int16_t count, pending;  // arrivals per round, arrivals missing
  int32_t bytes : 31;      // missing
  uint32_t parity : 1;     // of the complete rounds
};
static_assert(sizeof(EmulatedBarrier) == 8);

// memory: a CTA's.
template <class Change>
void change_barrier_in(uint8_t* memory, uint32_t barrier, const Change& change) {
  EmulatedBarrier state;
  std::memcpy(&state, memory + barrier, 8);
  change(state);
  if (state.pending == 0 && state.bytes == 0) {
    state.pending = state.count;
    state.parity ^= 1u;
  }
  std::memcpy(memory + barrier, &state, 8);
  emulation::made_progress();
}
template <class Change>
void change_barrier(uint32_t barrier, const Change& change) {
  change_barrier_in(smem, barrier, change);
}

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  const auto count = static_cast<int16_t>(arrivals);
  const EmulatedBarrier state{count, count, 0, 0};
  std::memcpy(smem + barrier, &state, 8);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier) {
  change_barrier(barrier, [](EmulatedBarrier& b) { --b.pending; });
}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  change_barrier(barrier, [&](EmulatedBarrier& b) {
    b.bytes += static_cast<int32_t>(bytes);
    --b.pending;
  });
}
inline void mbarrier_arrive_behind_copies(uint32_t barrier) {
  emulation::wait_own_copies();
  mbarrier_arrive(barrier);
}
inline void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes) {
  change_barrier(barrier, [&](EmulatedBarrier& b) { b.bytes -= static_cast<int32_t>(bytes); });
}
// Waits for the end of the round whose parity this is: true of the current round's predecessor, too.
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  emulation::wait_until([&] {
    EmulatedBarrier state;
    std::memcpy(&state, smem + barrier, 8);
    return state.parity != parity;
  });
}

struct EmulatedNamedBarrier {
  int arrived = 0;
  uint64_t round = 0;
};
inline EmulatedNamedBarrier named_barriers[16];

inline void named_barrier(int name, int threads) {
  EmulatedNamedBarrier& barrier = named_barriers[name];
  const uint64_t round = barrier.round;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.round;
    emulation::made_progress();
  }
  emulation::wait_until([&] { return barrier.round != round; });
}

// A cluster address has the rank above the offset.
inline void cluster_arrive() { emulation::cluster_arrive(); }
inline void cluster_wait() { emulation::cluster_wait(); }

inline constexpr uint32_t kEmulatedRank = 1u << 24;
inline uint32_t cluster_address(uint32_t shared, int rank) {
  return shared + static_cast<uint32_t>(rank) * kEmulatedRank;
}
inline void send4(uint32_t address, float value, uint32_t barrier) {
  uint8_t* const memory = emulation::cluster_memory(static_cast<int>(address / kEmulatedRank));
  std::memcpy(memory + address % kEmulatedRank, &value, 4);
  change_barrier_in(memory, barrier % kEmulatedRank, [](EmulatedBarrier& b) { b.bytes -= 4; });
}

}  // namespace nibble::backend::cuda::ptx
