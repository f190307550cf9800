#pragma once
// What the backend asks of kernels: an args struct per launcher, and the table of launchers, chosen once from the card.
// Pointers are device memory; activations are float, weights as the checkpoint ships them.

#include "backend/args.h"
#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/layout/packed.h"
#include "backend/kv_dtype.h"
#include "backend/dims.h"
#include "backend/plan.h"
#include "backend/sampling.h"
#include "base/dtype.h"

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <source_location>
#include <span>
#include <string_view>
#include <vector>

// cudaStream_t points to one; this header is for plans too, which do without CUDA.
struct CUstream_st;  // NOLINT(readability-identifier-naming): CUDA's name

namespace nibble::backend::cuda {

// A kernel as profilers show it: the name of its function, and in <> which instance where it is a template.
struct Kernel {
  std::string_view name;
  friend constexpr bool operator==(Kernel, Kernel) = default;
};

// One with an instance per type of KV pages: "name<bf16>", …
class PageKernel {
 public:
  explicit constexpr PageKernel(std::string_view name) {
    for (const KvType& type : kKvTypes) {
      Text& text = texts_[static_cast<size_t>(type.dtype)];
      for (const std::string_view part : {name, std::string_view("<"), type.name, std::string_view(">")})
        for (const char c : part) text.at[text.size++] = c;
    }
  }
  // REQUIRES that this lives as long as its answer.
  [[nodiscard]] constexpr Kernel of(KvDtype type) const {
    const Text& text = texts_[static_cast<size_t>(type)];
    return {std::string_view(text.at.data(), text.size)};
  }

 private:
  struct Text {
    std::array<char, 48> at{};
    size_t size = 0;
  };
  std::array<Text, kKvDtypes> texts_{};
};

// Those of every card; an architecture's own stand in its folder. Arrays are by layout::Packing.
namespace kernel {
inline constexpr Kernel kEmbed{"any_embed_f32_bf16"}, kRopeTable{"any_rope_table_f32"};
// norm_rope/
inline constexpr Kernel kRmsnorm{"any_rmsnorm_f32_bf16"}, kNormSums{"any_norm_sums_f32"},
    kRopeSums{"any_rope_sums_f32"}, kCombine{"any_combine_f32"}, kTap{"any_tap_f32"};
inline constexpr PageKernel kRopeKv{"any_rope_kv"};
// attention/
inline constexpr PageKernel kAttend{"any_attend"}, kAttendDecode{"any_attend_decode"},
    kAttendPrefill{"any_attend_prefill"};
inline constexpr Kernel kAttendDecodeFp8{"any_attend_decode<e4m3, fp8>"},
    kAttendPrefillFp8{"any_attend_prefill_fp8<mma>"};
// dense/
inline constexpr Kernel kLinear{"any_linear_f32_bf16"};
inline constexpr Kernel kGemvQkv[] = {{"gemv<qkv, bf16>"}, {"gemv<qkv, mxfp8>"}, {"gemv<qkv, mxfp4>"}};
inline constexpr Kernel kGemvDense[] = {{"gemv<dense, bf16>"}, {"gemv<dense, mxfp8>"}, {"gemv<dense, mxfp4>"}};
inline constexpr Kernel kGemm[] = {{"any_gemm<bf16>"}, {"any_gemm<mxfp8>"}, {"any_gemm<mxfp4>"}};
// experts/
inline constexpr Kernel kRouter{"any_router_f32_bf16"}, kRouteTokens{"any_route_tokens_f32_bf16"},
    kRouteSums{"any_route_sums"}, kTopExperts{"any_top_experts_f32"};
inline constexpr Kernel kPlainGroup{"any_moe_group_pairs"}, kPlainGateUp{"any_moe_gate_up_f32_mxfp4"},
    kPlainDown{"any_moe_down_f32_mxfp4"}, kPlainCombine{"any_moe_combine_f32"};
inline constexpr Kernel kMoeUp{"moe_up"}, kMoeDown{"moe_down"}, kGemvMoeDown{"gemv<moe_down>"};
inline constexpr Kernel kGroupTiles{"any_moe_group_tiles"}, kGroupRound{"any_group_round_f32"};
inline constexpr Kernel kGroupedUp{"grouped<up>"}, kGroupedDown{"grouped<down>"};
inline constexpr Kernel kInt8Up{"any_gemv_int8<up>"}, kInt8Down{"any_gemv_int8<down>"};
inline constexpr Kernel kGemmGateUp{"any_gemm<gate_up>"};
// quantise/
inline constexpr Kernel kRound{"any_round_f32"}, kRoundRows{"any_round_rows_e4m3"},
    kRoundInt8{"any_round_blocks_f32<int8>"}, kRoundMxfp8{"any_round_blocks_f32<mxfp8>"},
    kRoundMxfp6{"any_round_blocks_f32<mxfp6>"}, kRoundMxfp4{"any_round_blocks_f32<mxfp4>"};
// sampling/
inline constexpr Kernel kSampleMask{"any_sample_mask_f32"}, kSampleAdjust{"any_sample_adjust_f32"},
    kSampleFilter{"any_sample_filter_f32"}, kSampleDraw{"any_sample_draw_f32"}, kSamplePick{"any_sample_pick"};
}  // namespace kernel
[[nodiscard]] constexpr Kernel decode_kernel(KvDtype type, bool fp8) {  // FlashArgs
  return fp8 ? kernel::kAttendDecodeFp8 : kernel::kAttendDecode.of(type);
}
[[nodiscard]] constexpr Kernel by_packing(const Kernel (&kernels)[3], layout::Packing packing) {
  return kernels[static_cast<size_t>(packing)];
}

using LaunchCounts = std::map<std::string_view, int64_t>;  // by name

struct LaunchRecord {
  Stage stage;  // of the verb that launched it
  Kernel kernel;
};
using LaunchTrace = std::vector<LaunchRecord>;  // in the order of the stream

// Where a launcher enqueues, and what notes it.
struct Launch {
  CUstream_st* stream = nullptr;
  LaunchCounts* counts = nullptr;  // may be none
  LaunchTrace* trace = nullptr;    // may be none
  Stage stage = Stage::kEmbed;
  bool chained = true;  // kernels that can may begin while the one before drains (chained_launch.cuh)
};
// Counts and traces a launch that has happened.
void note_launch(Kernel kernel, const Launch& on);

// After every launch: throws Error(kDevice) when it failed, notes it otherwise.
void launched(Kernel kernel, const Launch& on, std::source_location where = std::source_location::current());
// For launchers: throws Error(kUnsupported) "cuda: <kernel>: want <want>, found <found>" unless `holds`.
void require_shape(bool holds, Kernel kernel, std::string_view want, int64_t found);

// cosine, sine [tokens, half] of positions[t] * inv_freq[d], times the concentration
struct RopeTableLaunch {
  const int32_t* positions = nullptr;
  const float* inv_freq = nullptr;  // [half]
  float* cosine = nullptr;
  float* sine = nullptr;
  int tokens = 0, half = 0;
  float concentration = 1;
};

// residual[t,:] = table[ids[t],:]; an id below 0 stands for max(0, sampled[-1 - id])
struct EmbedLaunch {
  const Bf16* table = nullptr;       // [vocab, hidden]
  const int32_t* ids = nullptr;      // [tokens]
  const int32_t* sampled = nullptr;  // [rows]
  float* out = nullptr;              // [tokens, hidden]
  int tokens = 0, hidden = 0;
};

// sum[r,:] = x[i,:] + delta[i,:]; out[r,:] = sum[r,:] / sqrt(mean(sum[r,:]^2) + eps) * scale, i = which[r]
struct RmsnormLaunch {
  const float* x = nullptr;        // [*, hidden]
  const float* delta = nullptr;    // [*, hidden]; may be none
  float* sum = nullptr;            // [rows, hidden]; may be none, or x without `which`
  const int32_t* which = nullptr;  // [rows]; none: r itself
  const Bf16* scale = nullptr;     // [hidden]
  float* out = nullptr;            // [rows, hidden]
  int rows = 0, hidden = 0;
  float eps = 0;
};

// out[t,r] = weight[r,:] · x[t,:] + bias[r]
struct LinearLaunch {
  const Bf16* weight = nullptr;  // [rows, cols]
  const Bf16* bias = nullptr;    // [rows]; may be none
  const float* x = nullptr;      // [tokens, cols]
  float* out = nullptr;          // [tokens, rows]
  int tokens = 0, rows = 0, cols = 0;
};
inline constexpr int kLinearWarps = 4;  // of a CTA

struct LinearTile {
  int rows = 1, tokens = 1;  // of a warp
};

[[nodiscard]] constexpr LinearTile linear_tile(int64_t tokens) {
  if (tokens == 1) return {1, 1};
  if (tokens == 2) return {1, 2};
  if (tokens <= 4) return {2, 4};
  return {4, 8};
}

// Rope rotates q in place and k; k and v go into their slots.
struct RopeKvLaunch {
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

struct AttendLaunch {
  const float* q = nullptr;     // [tokens, heads, head_dim]
  float* out = nullptr;         // [tokens, heads, head_dim]
  GemmInput rounded{};          // [tokens, heads * head_dim]: of attend_plan.h, instead of out, where it is given
  const Bf16* sinks = nullptr;  // [heads]; may be none
  const int32_t* token_row = nullptr;  // [tokens] the row of the page table
  const int32_t* positions = nullptr;  // [tokens] each sees the keys up to its own
  const int32_t* pages = nullptr;      // [rows, pages_per_row]
  KvPages kv;
  int pages_per_row = 0;
  int tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int window = 0;  // keys seen, the own included; 0: all
};

// The topk largest logits of a token, ids by falling logit (lower id on a tie), weights their softmax.
struct TopExpertsLaunch {
  const float* logits = nullptr;  // [tokens, experts]
  int32_t* ids = nullptr;         // [tokens, topk]
  float* weights = nullptr;       // [tokens, topk]
  int tokens = 0, experts = 0, topk = 0;
};

inline constexpr int kMoeTileTokens = kGemvTokens;

// The most tiles that `pairs` can make.
[[nodiscard]] constexpr int64_t max_moe_tiles(int64_t pairs, int64_t experts) {
  return pairs / kMoeTileTokens + (pairs < experts ? pairs : experts);
}

struct MxfpMatrix {
  const uint8_t* codes = nullptr;   // [experts, rows, cols / 32, 16]
  const uint8_t* scales = nullptr;  // [experts, rows, cols / 32]
};

// Over own experts: delta[t,:] = Σ_k weights[t,k] * (down[e] · swiglu(gate_up[e] · x[t,:] + gate_up_bias[e]) +
// down_bias[e])
struct MoeLaunch {
  const float* x = nullptr;               // [tokens, hidden]
  const int32_t* expert_ids = nullptr;    // [tokens, topk]
  const float* expert_weights = nullptr;  // [tokens, topk]
  MxfpMatrix gate_up, down;               // [experts, 2*inter, hidden], [experts, hidden, inter]
  const Bf16* gate_up_bias = nullptr;     // [experts, 2*inter]
  const Bf16* down_bias = nullptr;        // [experts, hidden]
  float* hidden_out = nullptr;            // [tokens, topk, inter]: swiglu(...)
  float* delta = nullptr;                 // [tokens, hidden]
  // Scratch
  int32_t* pairs = nullptr;                                      // [tokens * topk] token * topk + k, grouped by expert
  ExpertTile* tiles = nullptr;                                   // [max_moe_tiles]
  int32_t* tile_count = nullptr;                                 // [1]
  float* down_out = nullptr;                                     // [tokens, topk, hidden]
  int tokens = 0, topk = 0, experts = 0, hidden = 0, inter = 0;  // experts: own ones
  float swiglu_limit = 0;
  OwnExperts own{};
};

// SamplingParams of one row, as far as the device needs them.
struct SampleRowParams {
  uint64_t seed = 0;
  uint64_t position = 0;
  SamplingWords numbers{};              // get<&SamplingParams::top_p>() reads them
  float log_min_p = 0;                  // log(min_p) as the host rounds it; read where min_p acts
  int32_t first_shift = 0, shifts = 0;  // its part of the shifts
  int32_t mask = -1;                    // its row of the masks; -1: none

  template <auto kMember>
  [[nodiscard]] constexpr auto get() const {
    return std::bit_cast<MemberType<kMember>>(numbers[field_index(kMember)]);
  }
  [[nodiscard]] constexpr bool greedy() const { return get<&SamplingParams::temperature>() < kGreedyBelow; }
  friend bool operator==(const SampleRowParams&, const SampleRowParams&) = default;
};

// What bias and penalties do to one token's logit; a row names a token once.
struct LogitShift {
  int32_t token = 0;
  int32_t first_bias = 0, biases = 0;  // its part of the biases, added one after the other
  int32_t seen = 0;                    // repetition penalty applies
  float subtract = 0;                  // presence and frequency penalty
  int32_t has_subtract = 0;
};

struct SampleLaunch {
  float* logits = nullptr;                  // [rows, vocab]; unspecified afterwards
  const SampleRowParams* params = nullptr;  // [rows]
  const LogitShift* shifts = nullptr;       // of all rows
  const float* biases = nullptr;
  const uint32_t* masks = nullptr;  // [masks, mask_words(vocab)] bit t % 32 of word t / 32: token t may be drawn
  int32_t* tokens = nullptr;        // [rows] out; or kNotFinite, kNothingAllowed. Null: parts are for who picks
  uint64_t* threshold = nullptr;    // scratch [rows] the smallest key kept (sampling/sample.cuh)
  // [rows, kSampleParts], of each row sample_parts(rows): the best logit / T + noise of some of its tokens, and whose
  // it is, as before() of launch/warp.cuh ranks them; or kNotFinite, kNoToken
  float* part_value = nullptr;
  int32_t* part_token = nullptr;
  int rows = 0, vocab = 0;
  // A rank that draws from its columns alone: vocab is of these, masks are of `mask_vocab` tokens, and filters see
  // no more than the columns.
  int first = 0;  // the token of the first column, a multiple of 4
  int mask_vocab = 0;
  int most_shifts = 0;   // of any row; 0: none has any
  bool filters = false;  // some row has min_p, top_k or top_p
  bool masked = false;   // some row has a mask
};
inline constexpr int kSampleParts = 128;
// The whole choice, however many parts, is the same.
[[nodiscard]] constexpr int sample_parts(int rows) {
  constexpr int kCtas = 512;  // about as many as fit on an H100 together
  const int parts = kCtas / rows;
  return parts < 1 ? 1 : parts < kSampleParts ? parts : kSampleParts;
}
// In place of a token: a logit is NaN or +infinity; all are -infinity; of a part, which others may outdo.
inline constexpr int32_t kNotFinite = -1, kNothingAllowed = -2, kNoToken = 0x7fffffff;

[[nodiscard]] constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

struct GroupArgs;
struct GroupedUpArgs;
struct GroupedDownArgs;
struct GemvInt8Plan;
struct RoundBlocksArgs;
struct RoundRowsArgs;
struct RowWarpsPlan;
struct RoundArgs;
struct NormSumsArgs;
struct CombineArgs;
struct RopeSumsArgs;
struct TapArgs;
struct RouteTokensArgs;
struct RoutePlan;
struct RouteSumsArgs;
struct FlashArgs;
struct DecodePlan;
struct Eagle3LinearArgs;
struct Eagle3LinearPlan;
struct Eagle3NormArgs;
struct Eagle3EnterArgs;

// Launchers of what every card runs; those that differ are in Arch (arch/arch.h). Uniform: arguments, the plan that the
// program made, where to enqueue. Each checks its arguments, and throws Error(kUnsupported) that prints what it cannot
// serve.
struct KernelTable {
  void (*embed)(const EmbedLaunch& args, const Launch& on);
  void (*rmsnorm)(const RmsnormLaunch& args, const Launch& on);
  void (*linear)(const LinearLaunch& args, const Launch& on);
  void (*rope_kv)(const RopeKvLaunch& args, const Launch& on);
  void (*attend)(const AttendLaunch& args, const Launch& on);
  void (*top_experts)(const TopExpertsLaunch& args, const Launch& on);
  void (*rope_table)(const RopeTableLaunch& args, const Launch& on);
  // Experts with weights in row order: one after the other, of the same arguments
  void (*plain_group)(const MoeLaunch& args, const Launch& on);
  void (*plain_gate_up)(const MoeLaunch& args, const Launch& on);
  void (*plain_down)(const MoeLaunch& args, const Launch& on);
  void (*plain_combine)(const MoeLaunch& args, const Launch& on);
  void (*sample)(const SampleLaunch& args, const Launch& on);
  // 1 to 8 tokens: gemv_plan.h
  void (*dense)(const DenseArgs& args, const GemvPlan& plan, const Launch& on);
  void (*qkv)(const QkvArgs& args, const GemvPlan& plan, const Launch& on);
  void (*router)(const RouterArgs& args, const Launch& on);
  void (*moe_up)(const MoeUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
  void (*moe_down)(const MoeDownArgs& args, const RowWarpsPlan& plan, const Launch& on);
  void (*gemv_moe_down)(const GemvDownArgs& args, const GemvPlan& plan, const Launch& on);
  // Experts with their tokens grouped: grouped_plan.h
  void (*group_tiles)(const GroupArgs& args, const Launch& on);
  void (*grouped_up)(const GroupedUpArgs& args, const RowWarpsPlan& plan, const Launch& on);
  void (*grouped_down)(const GroupedDownArgs& args, const RowWarpsPlan& plan, const Launch& on);
  void (*int8_up)(const GroupedUpArgs& args, const GemvInt8Plan& plan, const Launch& on);
  void (*int8_down)(const GroupedDownArgs& args, const GemvInt8Plan& plan, const Launch& on);
  void (*round_blocks)(const RoundBlocksArgs& args, const Launch& on);
  void (*round_rows)(const RoundRowsArgs& args, const Launch& on);
  // Around the GEMMs of many tokens: around_gemm.h
  void (*round)(const RoundArgs& args, const Launch& on);
  void (*group_round)(const GroupArgs& group, const RoundArgs& args, const Launch& on);
  void (*norm_sums)(const NormSumsArgs& args, const Launch& on);
  void (*combine)(const CombineArgs& args, const Launch& on);
  void (*tap)(const TapArgs& args, const Launch& on);  // around_gemm.h
  void (*rope_sums)(const RopeSumsArgs& args, const Launch& on);
  void (*route_tokens)(const RouteTokensArgs& args, const RoutePlan& plan, const Launch& on);
  void (*route_sums)(const RouteSumsArgs& args, const Launch& on);
  // Attention on tensor cores: attend_plan.h
  void (*attend_decode)(const FlashArgs& args, KvDtype type, const DecodePlan& plan, const Launch& on);
  // A head's: eagle3/kernels.h
  void (*head_linear)(const Eagle3LinearArgs& args, const Eagle3LinearPlan& plan, const Launch& on);
  void (*head_norm)(const Eagle3NormArgs& args, const Launch& on);
  void (*head_enter)(const Eagle3EnterArgs& args, const Launch& on);
};

// Those of the build.
[[nodiscard]] KernelTable all_kernels();

// When a launch's kernel ran.
struct KernelSpan {
  uint64_t start_ns = 0, end_ns = 0;
};

// Launches and the times that the card gave them, as a profile. The spans by start; the launches in the order of their
// stream, which is the same. The first `skipped` do not count. Throws Error(kDevice) unless there is a span for every
// launch.
[[nodiscard]] KernelProfile account(std::span<const LaunchRecord> launches, std::vector<KernelSpan> spans,
                                    size_t skipped = 0);

}  // namespace nibble::backend::cuda
