#include "backend/cuda/program/choices.h"

#include "backend/cuda/norm_rope/around_gemm.h"
#include "backend/cuda/attention/attend_plan.h"
#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/eagle3/kernels.h"
#include "backend/cuda/sampling/screen.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {

using layout::Packing;

namespace {

// Throws Error(kUnsupported), naming it, for a head whose shapes the kernels do not take.
void require_head_shapes(const BackendConfig& config, const RunConfig& run) {
  const Dims& d = config.dims;
  const HeadConfig& head = *config.head;
  const auto require = [](bool holds, std::string_view what, std::string_view want, int64_t found) {
    if (!holds) throw Error(Code::kUnsupported, "cuda: a head's {}: want {}, found {}", what, want, found);
  };
  require(d.hidden % 8 == 0 && d.hidden <= kEagle3MostHidden, "hidden_size", "a multiple of 8 up to 8192", d.hidden);
  require(head.target_hidden % 8 == 0 && head.taps * head.target_hidden <= kEagle3MostWidth, "target_hidden_size",
          "a multiple of 8, and no more than 16384 of all states that it reads", head.target_hidden);
  require(d.inter % 8 == 0, "intermediate_size", "a multiple of 8", d.inter);
  require(d.head_dim % 8 == 0 && d.head_dim <= kEagle3MostHeadDim, "head_dim", "a multiple of 8 up to 128", d.head_dim);
  require(d.heads % d.kv_heads == 0, "num_attention_heads", "a multiple of num_key_value_heads", d.heads);
  require(config.max_tokens <= kEagle3MostTokens && config.max_rows <= kEagle3MostTokens, "step", "up to 64 tokens",
          std::max(config.max_tokens, config.max_rows));
  if (run.kv_type() != KvDtype::kBf16)
    throw Error(Code::kUnsupported, "cuda: a head's keys and values: want bf16, found {}", name_of(run.kv_type()));
}

// Whether an architecture's GEMMs multiply codes for a step with as many pairs as experts.
bool takes_codes(const Arch& arch, const Card& card, ExpertsShape shape, const Dims& d) {
  if (arch.experts_gemm.serve == nullptr) return false;
  shape.hidden = d.hidden, shape.inter = d.inter, shape.pairs = shape.experts = d.experts;
  const std::optional<ExpertsPlan> plan = arch.experts_gemm.serve(shape, card.facts);
  return plan && in_codes(plan->input);
}

}  // namespace

KernelFamily choose_family(const BackendConfig& config, const RunConfig& run) {
  if (config.head) {
    require_head_shapes(config, run);
    return KernelFamily::kReference;  // matrices in row order
  }
  const std::optional<std::string> reason = why_not_packed(config);
  const bool requantised = config.dense.qkv || config.dense.o || config.dense.lm_head;
  const bool any = run.family == KernelFamily::kAuto && !reason;
  const bool gemm = run.family == KernelFamily::kGemm || any;
  const bool packed = gemm || run.family == KernelFamily::kStreaming;
  if (packed && reason) throw Error(Code::kUnsupported, "--moe-kernel {}: {}", name_of(run.family), *reason);
  if (!packed && requantised)
    throw Error(Code::kUnsupported,
                "--mxfp4-layers, --mxfp8-layers and --q8-layers: want --moe-kernel auto, marlin or gemm: {}",
                reason.value_or("reference was asked for"));
  return any || packed ? run.family : KernelFamily::kReference;
}

Activations choose_activations(KernelFamily kernel, const RunConfig& run) {
  const Activations wanted = run.activations;
  const bool plain = kernel == KernelFamily::kReference;
  if (wanted == Activations::kInt8)
    throw Error(Code::kUnsupported, "--moe-activation int8: want --backend cpu or reference, found cuda");
  if (plain ? rounds(wanted) : wanted == Activations::kF32)
    throw Error(Code::kUnsupported, "--moe-activation {}: want --moe-kernel {}, found {}", name_of(wanted),
                plain ? "auto, marlin or gemm" : "reference", name_of(kernel));
  if (plain) return Activations::kF32;
  return rounds(wanted) ? wanted : Activations::kBf16;
}

void require_moe_tile(const BackendConfig& config, const RunConfig& run, const Card& card) {
  if (run.moe_tile == MoeTile::kAuto) return;
  const Dims& d = config.dims;
  const ExpertsShape shape{.activations = run.activations, .tile_tokens = tokens_of(run.moe_tile)};
  const KernelFamily kernel = choose_family(config, run);
  const auto takes = [&](const Arch& arch) { return takes_codes(arch, card, shape, d); };
  if (has_gemms(kernel) && std::ranges::any_of(card.arches, takes)) return;
  throw Error(
      Code::kUnsupported,
      "--moe-tile {}: want a card of compute capability 12, --moe-activation mxfp8, mxfp6 or mxfp4, --moe-kernel "
      "auto or gemm, and hidden_size and intermediate_size in multiples of 64, found {}, {}, {}, {} and {}",
      name_of(run.moe_tile), card.facts.name, name_of(run.activations), name_of(kernel), d.hidden, d.inter);
}

bool choose_flash(const BackendConfig& config, const RunConfig& run) {
  const Dims& d = config.dims;
  const KvType& type = type_of(run.kv_type());
  require_pages(type.dtype);
  const bool served = flash_serves(d.heads, d.kv_heads, d.head_dim, type.dtype);
  if (run.attention == AttentionKernel::kFlash && !served) {
    std::vector<std::string_view> words;
    for (const KvType& each : kKvTypes)
      if (on_tensor_cores(each.dtype)) words.push_back(each.word);
    throw Error(Code::kUnsupported,
                "--attention-backend flash: want head_dim 64, num_attention_heads of up to 8 times num_key_value_heads "
                "and a KV cache in {}, found head_dim {}, {} heads, {} key-value heads, {}",
                fmt::join(words, " or "), d.head_dim, d.heads, d.kv_heads, type.word);
  }
  const bool flash = served && run.attention != AttentionKernel::kReference;
  if (run.fp8_attention() && (!flash || type.dtype != KvDtype::kE4m3))
    throw Error(
        Code::kUnsupported,
        "--attention-activation fp8: want --kv-cache-dtype fp8 and what --attention-backend flash takes (head_dim "
        "64, num_attention_heads of up to 8 times num_key_value_heads), found {}, --attention-backend {}, head_dim "
        "{}, {} heads, {} key-value heads",
        type.word, backend::name_of(run.attention), d.head_dim, d.heads, d.kv_heads);
  return flash;
}

bool prefill_takes(const Card& card, KvDtype type) {
  for (const Arch& arch : card.arches) {
    if (arch.prefill.serve == nullptr) continue;
    const bool takes = arch.prefill.serve({type}).has_value();
    if (takes || arch.prefill.serve({KvDtype::kBf16})) return takes;
  }
  return false;
}

bool multiplies_codes(KernelFamily kernel, const Dims& d, const Card& card) {
  return has_gemms(kernel) && std::ranges::any_of(card.arches, [&](const Arch& arch) {
           return arch.gemm.codes && takes_codes(arch, card, {.activations = Activations::kMxfp8}, d);
         });
}

bool multiplies_rows(KernelFamily kernel, const Dims& d, const Card& card) {
  constexpr int64_t kMany = 64;  // pairs an expert
  const ExpertsShape shape{.hidden = d.hidden,
                           .inter = d.inter,
                           .pairs = kMany * d.experts,
                           .experts = d.experts,
                           .activations = Activations::kMxfp8,
                           .byte_scales = true};
  return kernel == KernelFamily::kAuto && std::ranges::any_of(card.arches, [&](const Arch& arch) {
           if (arch.experts_gemm.serve == nullptr) return false;
           const std::optional<ExpertsPlan> plan = arch.experts_gemm.serve(shape, card.facts);
           return plan && plan->row_codes;
         });
}

bool fused_step(const Dims& d, int64_t tokens) {
  return tokens <= kGemvTokens && tokens * d.topk <= kGemvRoutes && d.experts <= kGemvExperts && d.experts % 4 == 0 &&
         d.topk >= 2 && d.hidden <= kRouterHidden;
}

bool has_gemms(KernelFamily kernel) { return kernel == KernelFamily::kGemm || kernel == KernelFamily::kAuto; }

bool dense_by_gemm(KernelFamily kernel, const Dims& d, int64_t tokens) {
  return has_gemms(kernel) && !fused_step(d, tokens);
}

bool experts_by_gemm(KernelFamily kernel, const ExpertsPlan& gemms, const Dims& d, const Tuned& tuned, int64_t tokens) {
  if (fused_step(d, tokens)) return false;
  if (kernel != KernelFamily::kAuto) return kernel == KernelFamily::kGemm;
  const int64_t pairs = tokens * d.topk;
  // A rank with some columns of every expert has other widths: small steps were not measured to gain there.
  const bool whole = gemms.at_once && d.inter == d.hidden, apart = !whole && !gemms.row_codes;
  const bool few = whole && std::min(pairs, d.experts) <= tuned.gemm_at_once_pairs;
  const int64_t grouped = apart ? std::max(tuned.grouped_pairs, tuned.grouped_pairs_apart) : tuned.grouped_pairs;
  return few || pairs > grouped * d.experts;
}

bool logits_by_gemm(KernelFamily kernel, int64_t rows) { return has_gemms(kernel) && rows > kGemvTokens; }

bool o_in_halves(const Tuned& tuned, const GemvShape& o, const PlanDevice& device) {
  return tuned.o_in_halves && balances_in_halves(o, device);
}

bool screens_logits(const BackendConfig& config, const RunConfig& run, const DeviceFacts& card) {
  static_assert(kFewTokens == kGemvTokens);
  const Dims& d = config.dims;
  return run.screened_head == ScreenedHead::kAuto && !config.own_experts && !config.head &&
         choose_family(config, run) != KernelFamily::kReference &&
         packing_of(WeightRole::kUnembedding, config.dense) == Packing::kBf16 && layout::screens(d.vocab, d.hidden) &&
         has_room_to_screen(screen_copy_bytes(d.vocab, d.hidden), card.memory_bytes);
}

bool may_copy_experts(const BackendConfig& config, const RunConfig& run) {
  return host_layers(run, config.dims.layers) > 0 && run.expert_copy_tokens > 0 && !config.own_experts &&
         has_gemms(choose_family(config, run));
}

bool copies_experts(const BackendConfig& config, const RunConfig& run, int64_t tokens) {
  return may_copy_experts(config, run) && tokens >= std::max<int64_t>(run.expert_copy_tokens, kFewTokens + 1);
}

DenseFormats with_q8(const BackendConfig& config, const RunConfig& run, const DeviceFacts& card,
                     const DenseFormats& file) {
  DenseFormats dense = config.dense;
  if (!dense.keeps_q8 || config.head || !has_gemms(choose_family(config, run)) || !fused_step(config.dims, 1))
    return dense;
  if (!dense.qkv) dense.qkv = file.qkv;
  if (!dense.o) dense.o = file.o;
  // A screen reads a sixth less, and takes 26 us besides (docs/decisions/0075).
  constexpr double kFastBytesPerS = 1e12;
  if (!dense.lm_head && (card.memory_bytes_per_s > kFastBytesPerS || !screens_logits(config, run, card)))
    dense.lm_head = file.lm_head;
  return dense;
}

bool widens_q8(const Card& card) {
  GemmShape shape{.rows = 4096, .cols = 4096, .tokens = 4096, .packing = Packing::kBf16};
  for (const Arch& arch : card.arches) {
    if (arch.gemm.serve == nullptr || !arch.gemm.serve(shape, card.facts)) continue;
    shape.packing = Packing::kQ8;
    return arch.gemm.serve(shape, card.facts).has_value();
  }
  return false;
}

Packing packing_of(WeightRole role, const DenseFormats& dense) {
  if (role == WeightRole::kGateUp || role == WeightRole::kDown) return Packing::kMxfp4;
  const std::optional<WeightFormat> format = dense.of(role);
  if (!format) return Packing::kBf16;
  return *format == WeightFormat::kMxfp4   ? Packing::kMxfp4
         : *format == WeightFormat::kMxfp8 ? Packing::kMxfp8
                                           : Packing::kQ8;
}

std::optional<std::string> why_not_packed(const BackendConfig& config) {
  const Dims& d = config.dims;
  if (d.head_dim != kGemvHeadDim) return fmt::format("want head_dim {}, found {}", kGemvHeadDim, d.head_dim);
  if (d.heads % d.kv_heads != 0) return "want heads in whole groups per kv head";
  constexpr int kMostExperts = 256;
  if (d.experts > kMostExperts) return fmt::format("want up to {} experts, found {}", kMostExperts, d.experts);
  const struct {
    std::string_view name;
    int64_t value;
  } widths[] = {{"hidden", d.hidden}, {"heads * head_dim", d.q_width()}};
  for (const auto& [name, value] : widths)
    if (layout::slice_blocks(value) == 0)
      return fmt::format("want {} in up to 16 slices of 192 or 256, found {}", name, value);
  if (d.inter % layout::kBlockK != 0 || layout::slices_of(layout::block_pair_width(d.inter)).count == 0)
    return fmt::format("want inter in blocks of 32 and up to 16 slices of 192 or 256, found {}", d.inter);
  if (d.hidden % layout::kTileRows != 0 || d.inter % 8 != 0 || d.vocab % layout::kTileRows != 0)
    return fmt::format("want hidden and vocab in multiples of 16, found {} and {}", d.hidden, d.vocab);
  return std::nullopt;
}

}  // namespace nibble::backend::cuda

namespace nibble::backend {

Shard cuda_shard(Shard shard) {
  namespace layout = cuda::layout;
  const int64_t least = std::max<int64_t>(shard.inter.count, layout::kBlockK);
  shard.inter.count =
      layout::slices_of(layout::block_pair_width(least)).count != 0 ? least : layout::sliced_width(least);
  return shard;
}

int64_t cuda_down_cols(const Shard& shard) { return cuda::layout::block_pair_width(shard.inter.count); }

BackendConfig cuda_config(const BackendConfig& whole, const Ranks& ranks, int rank) {
  if (ranks.count == 1) return whole;
  BackendConfig own = config_of(whole, cuda_shard(shard_of(whole.dims, ranks, rank)));
  if (rank > 0) own.taps.clear();  // all have the same residuals: the first one shows them
  return own;
}

RunConfig resolved_cuda(const BackendConfig& config, const RunConfig& run) {
  RunConfig resolved = with_defaults(run);
  resolved.family = cuda::choose_family(config, run);
  resolved.activations = cuda::choose_activations(resolved.family, run);
  if (!rounds(run.dense_activations)) resolved.dense_activations = Activations::kBf16;
  resolved.attention = cuda::choose_flash(config, run) ? AttentionKernel::kFlash : AttentionKernel::kReference;
  return resolved;
}

}  // namespace nibble::backend
