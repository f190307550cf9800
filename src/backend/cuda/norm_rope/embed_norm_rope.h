#pragma once
// The plain kernels of this folder: embedding, norm, rope. Pointers are device memory. Plain C++.

#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"

#include <cstdint>

namespace nibble::backend::cuda {

// residual[t,:] = table[ids[t],:]; an id below 0 stands for max(0, sampled[-1 - id])
struct Embed {
  static constexpr Kernel kName{"any_embed_f32_bf16"};
  struct Args {
    const Bf16* table = nullptr;       // [vocab, hidden]
    const int32_t* ids = nullptr;      // [tokens]
    const int32_t* sampled = nullptr;  // [rows]
    float* out = nullptr;              // [tokens, hidden]
    int tokens = 0, hidden = 0;
  };
  static void launch(const Args& args, const Launch& on);
};

// What the build holds of these kernels for the current device: a cudaError_t, and the architecture that it was
// compiled for, 80 of sm_80.
struct KernelCode {
  int status = 0;
  int arch = 0;
};
[[nodiscard]] KernelCode any_kernels_code();

// sum[r,:] = x[i,:] + delta[i,:]; out[r,:] = sum[r,:] / sqrt(mean(sum[r,:]^2) + eps) * scale, i = which[r]
struct Rmsnorm {
  static constexpr Kernel kName{"any_rmsnorm_f32_bf16"};
  struct Args {
    const float* x = nullptr;        // [*, hidden]
    const float* delta = nullptr;    // [*, hidden]; may be none
    float* sum = nullptr;            // [rows, hidden]; may be none, or x without `which`
    const int32_t* which = nullptr;  // [rows]; none: r itself
    const Bf16* scale = nullptr;     // [hidden]
    float* out = nullptr;            // [rows, hidden]
    int rows = 0, hidden = 0;
    float eps = 0;
  };
  static void launch(const Args& args, const Launch& on);
};

// cosine, sine [tokens, half] of positions[t] * inv_freq[d], times the concentration
struct RopeTable {
  static constexpr Kernel kName{"any_rope_table_f32"};
  struct Args {
    const int32_t* positions = nullptr;
    const float* inv_freq = nullptr;  // [half]
    float* cosine = nullptr;
    float* sine = nullptr;
    int tokens = 0, half = 0;
    float concentration = 1;
  };
  static void launch(const Args& args, const Launch& on);
};

// Rope rotates q in place and k; k and v go into their slots.
struct RopeKv {
  static constexpr PageKernel kNames{"any_rope_kv"};
  struct Args {
    float* q = nullptr;                    // [tokens, heads, head_dim]
    const float* k = nullptr;              // [tokens, kv_heads, head_dim]
    const float* v = nullptr;              // [tokens, kv_heads, head_dim]
    const int32_t* positions = nullptr;    // [tokens]
    const int32_t* kv_slots = nullptr;     // [tokens]
    const float* rope_inv_freq = nullptr;  // [head_dim / 2]
    KvPages kv;
    int tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
    float rope_concentration = 1;
  };
  static void launch(const Args& args, const Launch& on);
};

}  // namespace nibble::backend::cuda
