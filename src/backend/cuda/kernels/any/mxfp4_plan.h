#pragma once
// The exact W4A16 MXFP4 kernels for 1 to 8 tokens: arguments, checks, plan and cost. Plain C++; launchers:
// mxfp4_gemv.h.

#include "backend/cuda/layout/mx_a_m16k32.h"
#include "base/dtype.h"

#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

inline constexpr int kGemvTokens = 8;   // most tokens in a launch: the columns of an mma
inline constexpr int kGemvRoutes = 32;  // most tokens * topk in a launch: the lanes of a warp

// What the plan needs to know of a card (cudaDeviceProp: multiProcessorCount, sharedMemPerBlockOptin,
// sharedMemPerMultiprocessor).
struct GemvDevice {
  int sms = 0;
  int64_t cta_smem_bytes = 0;
  int64_t sm_smem_bytes = 0;
};

// All pointers are device memory. Weights: packed as layout/mx_a_m16k32.h says, 16-byte aligned; activations f16,
// row-major, 16-byte aligned, finite (an infinity gives infinities or NaN, as in IEEE arithmetic). Biases keep the
// checkpoint's order. Weight values are exact; products are exact; sums are f32 in a fixed order, so that a launch
// is bitwise repeatable. A row's result is finite where no partial sum of |w||x| leaves float's range.

// y[t, r] = W[r] · x[t] + bias[r], or y += with kAdd.
enum class Into : uint8_t { kStore, kAdd };
struct DenseArgs {
  const uint8_t* weights = nullptr;  // [rows, cols] RowOrder::kPlain
  const Bf16* bias = nullptr;        // [rows], or null
  const F16* x = nullptr;            // [tokens, cols]
  float* y = nullptr;                // [tokens, rows]
  int rows = 0, cols = 0, tokens = 0;
  Into into = Into::kStore;
};

// u[t, k] = swiglu(W1[e] · x[t] + b1[e]), e = expert_ids[t, k]. An expert's weights are read once, whatever the number
// of its tokens. REQUIRES that a token's expert ids differ and lie in [0, experts).
struct MoeUpArgs {
  const uint8_t* weights = nullptr;     // [experts] of [2 * inter, hidden] RowOrder::kGateUp
  const Bf16* bias = nullptr;           // [experts, 2 * inter], gate even, up odd
  const F16* x = nullptr;               // [tokens, hidden]
  const int32_t* expert_ids = nullptr;  // [tokens, topk]
  F16* u = nullptr;                     // [tokens, topk, inter]
  int hidden = 0, inter = 0, topk = 0, tokens = 0;
  float swiglu_limit = 7.0f;
};

// Σ_k weights[t, k] (W2[e] · u[t, k] + b2[e]). parts 1: added to y [tokens, hidden]. parts 2: stored to y [2, tokens,
// hidden], whose halves the next kernel adds; balances the SMs better (180 row tiles over 132 SMs: 6 tiles instead of
// 8). kBeforeWait: expert_ids were complete before the previous kernel let this one start; true behind moe_up, which
// lets its successor start only after its own wait. Then the first weights are fetched while moe_up still runs.
enum class IdsReady : uint8_t { kAfterWait, kBeforeWait };
struct MoeDownArgs {
  const uint8_t* weights = nullptr;       // [experts] of [hidden, inter] RowOrder::kPlain
  const Bf16* bias = nullptr;             // [experts, hidden]
  const F16* u = nullptr;                 // [tokens, topk, inter]
  const int32_t* expert_ids = nullptr;    // [tokens, topk]
  const float* expert_weights = nullptr;  // [tokens, topk]
  float* y = nullptr;
  int hidden = 0, inter = 0, topk = 0, tokens = 0, parts = 1;
  IdsReady ids_ready = IdsReady::kAfterWait;
};

// One launch: a ring of `stages` weight tiles in shared memory, filled by one warp, read by one warp per slice, the
// warps' partial sums added by one more.
struct GemvPlan {
  int grid = 0, threads = 0, stages = 0, slices = 0;
  int64_t tile_bytes = 0, smem_bytes = 0;

  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const GemvPlan&, const GemvPlan&) = default;
};

struct GemvShape {
  int64_t rows = 0, cols = 0;
  int matrices = 1;  // most that one launch may read: distinct experts
};

// stages 0: as many as keep about 100 KB in flight. Throws Error(kUnsupported) for a shape without slices or a card
// with too little shared memory for a ring of two.
[[nodiscard]] GemvPlan plan_gemv(const GemvShape& shape, const GemvDevice& device, int stages = 0);

struct GemvCost {
  int64_t bytes = 0;  // that must cross the memory bus: weights of each distinct expert once, activations once
  int64_t flops = 0;
};
[[nodiscard]] GemvCost cost(const DenseArgs& args);
[[nodiscard]] GemvCost cost(const MoeUpArgs& args, int distinct_experts);
[[nodiscard]] GemvCost cost(const MoeDownArgs& args, int distinct_experts);

// Throw Error(kInvalidRequest or kUnsupported) that prints the arguments when a launch cannot serve them.
void check_args(const DenseArgs& args);
void check_args(const MoeUpArgs& args);
void check_args(const MoeDownArgs& args);

// Packs on the device what layout/mx_pack.h packs on the host, `matrices` of them, one after the other. bad_scales
// counts codes above layout::kMaxScaleCode (they make the packed matrix meaningless); the caller zeroes and reads it.
struct PackArgs {
  const uint8_t* blocks = nullptr;  // [matrices, rows, cols/32, 16]
  const uint8_t* scales = nullptr;  // [matrices, rows, cols/32]
  uint8_t* packed = nullptr;        // [matrices, packed_bytes(rows, cols)], 4-byte aligned
  int* bad_scales = nullptr;
  int64_t matrices = 1, rows = 0, cols = 0;
  layout::RowOrder order = layout::RowOrder::kPlain;
};
void check_args(const PackArgs& args);

// For the launchers, whose compiler does not take base/error.h: throws Error(kDevice).
[[noreturn]] void throw_device_error(const char* what, const char* reason);

}  // namespace nibble::backend::cuda
