#pragma once
// The verbs on the streaming kernels (gemv.h), for any number of tokens: up to eight in the fused form, which is what
// decoding runs; more as launches of eight and experts with their tokens grouped.

#include "backend/cuda/arena.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/gemm_path.h"
#include "backend/cuda/kernel_table.h"
#include "backend/cuda/kernels/any/gemv.h"
#include "backend/cuda/kernels/any/grouped.h"
#include "backend/cuda/packed_weights.h"

#include <cstdint>
#include <span>

namespace nibble::backend::cuda {

// One layer's weights, or those of the outer layers, as the verbs need them.
struct AttnInWeights {
  const Bf16* norm = nullptr;
  PackedWeights::Matrix qkv;
  const Bf16* bias = nullptr;
};
struct LinearWeights {
  PackedWeights::Matrix matrix;
  const Bf16* bias = nullptr;
};
struct RouteWeights {
  const Bf16 *norm = nullptr, *router = nullptr, *bias = nullptr;
};
struct MoeWeights {
  const uint8_t *up = nullptr, *down = nullptr;
  const Bf16 *up_bias = nullptr, *down_bias = nullptr;
};

class DecodePath {
 public:
  DecodePath(const BackendConfig& config, const Arena& at, const KernelTable& kernels, const GemvDevice& device)
      : config_(config), d_(config.dims), at_(at), kernels_(kernels), device_(device) {}

  // From now on what choices.h gives to the GEMMs runs on these, and flash attention rounds for them. They outlive the
  // path.
  void use_gemms(const GemmPath* gemms, MoeKernel kernel, bool flash) {
    gemms_ = gemms;
    kernel_ = kernel;
    flash_ = flash;
  }
  // From now on: what the experts multiply, and how many tokens go where.
  void use(ExpertActivations activations, const Tuned& tuned) {
    activations_ = activations;
    tuned_ = tuned;
  }
  // The GEMMs' expert_hidden holds the last moe's; else it lies in the arena.
  [[nodiscard]] bool experts_on_gemms() const { return experts_by_gemm(kernel_, activations_, d_, tuned_, tokens_); }

  // A step of `tokens` begins; residual holds their embeddings.
  void begin(int64_t tokens) {
    tokens_ = tokens;
    pending_ = false;
    owed_ = {};
    unturned_ = {};
    chosen_ = true;
    unwritten_norm_ = nullptr;
  }
  // A whole step of `tokens` has run behind the verbs' back, as a graph of them.
  void replayed(int64_t tokens);
  void attn_in(const AttnInWeights& w, int layer, const int32_t* positions, const int32_t* kv_slots, const Launch& on);
  // The step's q, k and v are in their places afterwards; but where decode attention makes them itself, it gets what
  // of.
  [[nodiscard]] RopeSumsArgs attend_input(std::span<const Row> rows, const Launch& on);
  // Where attention puts its result for attn_out, instead of into the arena; or none.
  [[nodiscard]] GemmInput attn_input() const;
  void attn_out(const LinearWeights& w, const Launch& on);
  void route(const RouteWeights& w, const Launch& on);
  void moe(const MoeWeights& w, const Launch& on);
  struct LogitRows {
    const int32_t* tokens = nullptr;  // [rows]
    int64_t rows = 0;
    const Bf16* norm = nullptr;
  };
  void logits(const LinearWeights& w, const LogitRows& rows, const Launch& on);

  // Makes the slots that the fused kernels leave for later what the contract says, for peek: the residual with its
  // pending sums, the experts of the last route, normed where only its rounded form is read.
  void settle(const Launch& on);

 private:
  [[nodiscard]] bool fused() const;
  [[nodiscard]] RowsIn residual(int64_t first) const;
  void run_dense(DenseArgs args, int64_t rows, const Launch& on) const;
  void fused_moe(const MoeWeights& w, const Launch& on);
  void round_blocks(float* from, F16* to, int64_t values, const Launch& on) const;
  void many_route(const RouteWeights& w, const Launch& on);
  [[nodiscard]] ExpertSums gemm_moe(const MoeWeights& w, const Launch& on) const;
  [[nodiscard]] ExpertSums grouped_moe(const MoeWeights& w, const Launch& on);
  [[nodiscard]] NormSumsArgs settled_residual() const;
  void settle_residual(const Launch& on);
  void turn(Launch on);
  void many_attn_in(const AttnInWeights& w, const KvPages& kv, const int32_t* kv_slots, const Launch& on);
  void many_logits(const LinearWeights& w, const LogitRows& rows, const Launch& on);
  [[nodiscard]] ExpertChoice choice() const;
  [[nodiscard]] GemvLaunch chained(const Launch& on) const;

  const BackendConfig& config_;
  const Dims& d_;
  const Arena& at_;
  const KernelTable& kernels_;
  const GemvDevice device_;
  const GemmPath* gemms_ = nullptr;
  MoeKernel kernel_ = MoeKernel::kMarlin;
  ExpertActivations activations_ = ExpertActivations::kExact;
  Tuned tuned_;
  bool flash_ = false;
  int64_t tokens_ = 0;
  bool pending_ = false;  // the residual has still to get the last moe's sums
  struct Owed {
    SplitSums sums;
    const Bf16* bias = nullptr;
    ExpertSums experts{};
    [[nodiscard]] bool any() const { return sums.splits > 0 || experts.at != nullptr; }
  };
  Owed owed_;                             // it has still to get attn_out's or moe's
  RopeSumsArgs unturned_;                 // with splits: q, k and v are still to be made of them
  bool chosen_ = true;                    // expert_ids are those of the last route
  const Bf16* unwritten_norm_ = nullptr;  // what makes normed of residual, which nothing but peek reads
};

}  // namespace nibble::backend::cuda
