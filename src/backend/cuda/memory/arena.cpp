#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/memory/arena.h"

#include "backend/cuda/program/choices.h"
#include "backend/cuda/layout/wgmma_b.h"

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/experts/experts.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {
namespace {

KvPages carve_pages(const Dims& dims, int64_t pages, KvDtype kv, Carver& carver) {
  const int64_t bytes = pages * kPageTokens * dims.kv_heads * page_row_bytes(page_type(kv).dtype, dims.head_dim);
  auto* keys = carver.take<std::byte>(bytes);
  return {.keys = keys, .values = carver.take<std::byte>(bytes), .type = kv};
}

// Pages that one row's table can name.
int64_t most_row_pages(const BackendConfig& config) {
  const int64_t of_context = (config.dims.max_context + kPageTokens - 1) / kPageTokens;
  const int64_t of_pool = *std::max_element(config.kv_pages.begin(), config.kv_pages.end());
  return std::max<int64_t>(1, std::min(of_context, of_pool));
}

int64_t in_atoms(int64_t rows) { return (rows + layout::kAtomRows - 1) / layout::kAtomRows * layout::kAtomRows; }

// What the widest dense product of a step leaves for its readers.
int64_t sum_floats(const Dims& d, int64_t tokens, const Card& card) {
  const int64_t qkv = d.q_width() + 2 * d.kv_width();
  int64_t floats = tokens * std::max(qkv, d.hidden);
  for (const Arch& arch : card.arches) {
    const auto most = arch.split_gemm.most_values;
    if (most == nullptr) continue;
    const int64_t values =
        std::max(most(qkv, d.hidden, tokens, card.facts), most(d.hidden, d.q_width(), tokens, card.facts));
    floats = std::max(floats, (values + 1) / 2);
  }
  return floats;
}

void carve_gemms(const ArenaNeeds& needs, Arena& a, Carver& carver) {
  const Dims& d = needs.config.dims;
  const int64_t tokens = needs.config.max_tokens, pairs = tokens * d.topk, places = max_places(pairs, d.experts);
  const int64_t rows = std::max<int64_t>(tokens, needs.config.max_rows);
  a.gemm_x = carver.take<uint16_t>(in_atoms(rows) * std::max(d.hidden, d.q_width()));
  a.gemm_u = carver.take<uint16_t>(places * layout::block_pair_width(d.inter));
  const auto& arches = needs.card.arches;
  if (std::any_of(arches.begin(), arches.end(), [](const Arch& arch) { return arch.experts_gemm.by_place; })) {
    a.gemm_placed_x = carver.take<uint16_t>(places * std::max(d.hidden, layout::block_pair_width(d.inter) / 2));
    a.gemm_row_scales = carver.take<float>(places);
    a.gemm_ranges = {carver.take<int32_t>(expert_ranges(tokens) * d.experts), carver.take<int32_t>(d.experts),
                     carver.take<int>(1)};
  }
  a.gemm_y = carver.take<float>(std::max(pairs * d.hidden / 2, sum_floats(d, tokens, needs.card)));
  a.gemm_pairs = carver.take<int32_t>(places);
  a.gemm_places = carver.take<int32_t>(pairs);
  a.gemm_tiles = carver.take<ExpertTile>(max_expert_tiles(pairs, d.experts, kGrouped.rows));
  a.gemm_tile_counts = carver.take<int32_t>(kTileCounts);
}

void carve_attention(const ArenaNeeds& needs, Arena& a, Carver& carver) {
  const Dims& d = needs.config.dims;
  const auto row_bytes = static_cast<int>(page_row_bytes(needs.kv, d.head_dim));
  const int target = most_target(static_cast<int>(d.kv_heads), row_bytes, plan_device(needs.card.facts));
  const DecodeScratch scratch = decode_scratch(target, d.kv_heads);
  a.attend_partials = carver.take<float>(scratch.floats);
  a.attend_finished = carver.take<int>(scratch.counters);
  a.attend_counters = scratch.counters;
  a.decode_tokens = carver.take<int32_t>(needs.config.max_tokens);
  a.attend_tiles = carver.take<AttendTile>(max_attend_tiles(needs.config.max_tokens));
}

void carve_head(const BackendConfig& config, HeadArena& a, Carver& carver) {
  const HeadConfig& head = *config.head;
  const Dims& d = config.dims;
  const int64_t tokens = config.max_tokens, rows = config.max_rows, width = head.taps * head.target_hidden;
  a.taps = carver.take<float>(tokens * width);
  a.rounded_taps = carver.take<Bf16>(tokens * width);
  a.x = carver.take<Bf16>(std::max(tokens, rows) * 2 * d.hidden);
  a.attended = carver.take<Bf16>(tokens * d.q_width());
  a.gated = carver.take<Bf16>(tokens * d.inter);
  a.features = carver.take<float>(rows * d.hidden);
  if (!head.target_ids.empty()) a.target_ids = carver.take<int32_t>(d.vocab);
}

}  // namespace

ArenaNeeds arena_needs(const BackendConfig& config, const RunConfig& run, const Card& card) {
  const KernelFamily family = choose_family(config, run);
  return {.config = config,
          .kv = run.kv_type(),
          .matrices = family == KernelFamily::kReference ? Matrices::kRowOrder : Matrices::kPacked,
          .gemms = has_gemms(family),
          .flash = choose_flash(config, run),
          .card = card};
}

Arena carve(const ArenaNeeds& needs, Carver& carver) {
  const BackendConfig& config = needs.config;
  const Dims& d = config.dims;
  const int64_t tokens = config.max_tokens, rows = config.max_rows, pairs = tokens * d.topk;
  Arena a;
  a.residual = carver.take<float>(tokens * d.hidden);
  const int64_t few = std::min<int64_t>(tokens, kGemvTokens);
  const int64_t parts = needs.matrices == Matrices::kPacked ? 2 : 1;
  a.delta = carver.take<float>(std::max(needs.gemms ? few : tokens, parts * few) * d.hidden);
  a.normed = carver.take<float>(std::max(tokens, rows) * d.hidden);
  a.taps = carver.take<float>(tokens * std::ssize(config.taps) * d.hidden);
  a.q = carver.take<float>(tokens * d.q_width());
  a.attn = carver.take<float>(tokens * d.q_width());
  a.router_logits = carver.take<float>(tokens * d.experts);
  a.expert_ids = carver.take<int32_t>(pairs);
  a.expert_weights = carver.take<float>(pairs);
  if (needs.matrices == Matrices::kPacked) {
    if (!page_type(needs.kv).alone) a.qkv = carver.take<float>(tokens * (d.q_width() + 2 * d.kv_width()));
    a.expert_hidden_f16 = carver.take<F16>(pairs * layout::block_pair_width(d.inter));
    a.residual_sum = carver.take<float>(few * d.hidden);
    if (config.own_experts) a.combined = carver.take<uint16_t>(split_pitch(tokens, d.hidden));
    a.inverse = carver.take<float>(tokens);
    a.normed_f16 = carver.take<F16>(tokens * d.hidden);
    a.down_finished = carver.take<int>(d.hidden / layout::kTileRows);
  } else {
    if (!config.head) {
      a.k = carver.take<float>(tokens * d.kv_width());
      a.v = carver.take<float>(tokens * d.kv_width());
      a.expert_hidden = carver.take<float>(pairs * d.inter);
    }
  }
  a.expert_out = carver.take<float>(pairs * d.hidden);
  a.moe_pairs = carver.take<int32_t>(max_places(pairs, d.experts));
  a.moe_tiles = carver.take<ExpertTile>(max_expert_tiles(pairs, d.experts, kMoeTileTokens));
  a.moe_tile_counts = carver.take<int32_t>(kTileCounts);
  a.logits = carver.take<float>(rows * d.vocab);
  if (needs.gemms) carve_gemms(needs, a, carver);
  if (needs.flash) carve_attention(needs, a, carver);
  if (config.head) carve_head(config, a.head, carver);
  a.step_pitch = std::max<int64_t>(8, (tokens + 3) / 4 * 4);
  const size_t kinds = kinds_of(d).size();
  int32_t* row = carver.take<int32_t>((4 + static_cast<int64_t>(kinds)) * a.step_pitch);
  const auto next_row = [&](int32_t*& array) { array = std::exchange(row, row == nullptr ? row : row + a.step_pitch); };
  for (int32_t** array : {&a.ids, &a.positions, &a.token_row, &a.last_key}) next_row(*array);
  for (size_t kind = 0; kind < kinds; ++kind) next_row(a.kv_slots[kind]);
  a.row_pages = most_row_pages(config);
  a.page_ids = std::min<int64_t>(tokens, kMaxStepRows) * a.row_pages;
  for (size_t kind = 0; kind < kinds; ++kind) a.pages[kind] = carver.take<int32_t>(a.page_ids);
  a.logit_tokens = carver.take<int32_t>(rows);
  a.rope_inv_freq = carver.take<float>(d.head_dim / 2);
  a.rope_cosine = carver.take<float>(tokens * d.head_dim / 2);
  a.rope_sine = carver.take<float>(tokens * d.head_dim / 2);
  a.sample_params = carver.take<SampleRowParams>(rows);
  a.sample_threshold = carver.take<uint64_t>(rows);
  a.sample_part_value = carver.take<float>(rows * kSampleParts);
  a.sample_part_token = carver.take<int32_t>(rows * kSampleParts);
  a.sampled = carver.take<int32_t>(rows);
  for (const LayerKind kind : config.layer_kinds)
    a.kv.push_back(carve_pages(d, config.kv_pages[static_cast<size_t>(kind)], needs.kv, carver));
  return a;
}

}  // namespace nibble::backend::cuda
