#pragma once
// host_rows: rows, ids and weights for experts on the host, into its memory; host_turn: the wait for it, one thread
// arguments: host_experts.h HostRows::Args, HostTurn::Args
// grid one CTA per token, four values per thread and turn     bytes over the link tokens * (4 hidden + 8 topk)
// rounding: none; of a residual x * inverse * norm in f32

#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/ptx/grid_dependency.cuh"
#include "backend/cuda/ptx/memory.cuh"

namespace nibble::backend::cuda {

__global__ void __launch_bounds__(kHostRowsThreads) any_host_rows(const __grid_constant__ HostRows::Args a) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const int64_t token = blockIdx.x, row = token * a.hidden;
  const float inverse = a.inverse == nullptr ? 1.0f : a.inverse[token];
  for (int d = 4 * static_cast<int>(threadIdx.x); d < a.hidden; d += 4 * kHostRowsThreads) {
    float v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = a.rounded != nullptr ? a.rounded[row + d + i].to_float() : a.x[row + d + i];
      if (a.inverse != nullptr) v[i] = v[i] * inverse * a.norm[d + i].to_float();
    }
    *reinterpret_cast<float4*>(a.to.x + row + d) = {v[0], v[1], v[2], v[3]};
  }
  if (const int k = static_cast<int>(threadIdx.x); k < a.topk) {
    a.to.ids[token * a.topk + k] = a.ids[token * a.topk + k];
    a.to.weights[token * a.topk + k] = a.weights[token * a.topk + k];
  }
  if (token == 0 && threadIdx.x == 0) *a.to.tokens = a.tokens;
}

__global__ void any_host_turn(const __grid_constant__ HostTurn::Args a) {
  ptx::grid_dependency_launch();
  ptx::grid_dependency_wait();
  const uint64_t turn = *a.with.turns + 1;
  *a.with.turns = turn;
  ptx::store_release_system(a.with.asked, HostTurn::word(turn, a.layer));
  while (ptx::load_acquire_system(a.with.answered) != turn) {
  }
}

}  // namespace nibble::backend::cuda
