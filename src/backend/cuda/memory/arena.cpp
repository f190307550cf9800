#include "backend/cuda/attention/page_types.h"
#include "backend/cuda/memory/arena.h"

#include "backend/cuda/program/choices.h"
#include "backend/cuda/layout/wgmma_b.h"

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/experts/experts.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace nibble::backend::cuda {
namespace {

KvPages carve_pages(const Dims& dims, int64_t pages, KvDtype kv, Carver& carver) {
  const int64_t bytes = pages * kPageTokens * dims.kv_heads * page_row_bytes(kv, dims.head_dim);
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

PairLists carve_lists(const Dims& d, int64_t pairs, int tile_tokens, Carver& carver) {
  return {.pairs = carver.take<int32_t>(max_places(pairs, d.experts)),
          .tiles = carver.take<ExpertTile>(max_expert_tiles(pairs, d.experts, tile_tokens)),
          .tile_counts = carver.take<int32_t>(kTileCounts)};
}

RowOrderArena carve_row_order(const BackendConfig& config, Carver& carver) {
  const Dims& d = config.dims;
  const int64_t tokens = config.max_tokens;
  return {.k = carver.take<float>(tokens * d.kv_width()),
          .v = carver.take<float>(tokens * d.kv_width()),
          .expert_hidden = carver.take<float>(tokens * d.topk * d.inter)};
}

PackedArena carve_packed(const ArenaNeeds& needs, Carver& carver) {
  const Dims& d = needs.config.dims;
  const int64_t tokens = needs.config.max_tokens;
  PackedArena a;
  a.expert_hidden = carver.take<F16>(tokens * d.topk * layout::block_pair_width(d.inter));
  a.residual_sum = carver.take<float>(std::min<int64_t>(tokens, kGemvTokens) * d.hidden);
  if (needs.config.own_experts) a.combined = carver.take<uint16_t>(split_pitch(tokens, d.hidden));
  a.inverse = carver.take<float>(tokens);
  a.normed = carver.take<F16>(tokens * d.hidden);
  a.down_finished = carver.take_zeros<int>(d.hidden / layout::kTileRows);
  return a;
}

GemmArena carve_gemms(const ArenaNeeds& needs, Carver& carver) {
  const Dims& d = needs.config.dims;
  const int64_t tokens = needs.config.max_tokens, pairs = tokens * d.topk, places = max_places(pairs, d.experts);
  const int64_t rows = std::max<int64_t>(tokens, needs.config.max_rows);
  GemmArena a;
  a.x = carver.take<uint16_t>(in_atoms(rows) * std::max(d.hidden, d.q_width()));
  a.u = carver.take<uint16_t>(places * layout::block_pair_width(d.inter));
  const auto& arches = needs.card.arches;
  if (std::any_of(arches.begin(), arches.end(), [](const Arch& arch) { return arch.experts_gemm.by_place; })) {
    a.placed_x = carver.take<uint16_t>(places * std::max(d.hidden, layout::block_pair_width(d.inter) / 2));
    a.row_scales = carver.take<float>(places);
  }
  a.y = carver.take<float>(std::max(pairs * d.hidden / 2, sum_floats(d, tokens, needs.card)));
  a.places = carver.take<int32_t>(pairs);
  a.lists = carve_lists(d, pairs, kGrouped.rows, carver);
  return a;
}

ScreenScratch carve_screen(const BackendConfig& config, Carver& carver) {
  const Dims& d = config.dims;
  const int64_t rows = std::min<int64_t>(config.max_rows, kGemvTokens);
  return {.v = carver.take<float>(rows * d.hidden),
          .tokens = carver.take<ScreenedToken>(rows),
          .part_value = carver.take<float>(rows * kScreenParts),
          .part_token = carver.take<int32_t>(rows * kScreenParts),
          .tiles = carver.take<int32_t>(d.vocab / layout::kTileRows),
          .state = carver.take_zeros<ScreenState>(1)};
}

AttendArena carve_attention(const ArenaNeeds& needs, Carver& carver) {
  const Dims& d = needs.config.dims;
  const auto row_bytes = static_cast<int>(page_row_bytes(needs.kv, d.head_dim));
  const int target = most_target(static_cast<int>(d.kv_heads), row_bytes, plan_device(needs.card.facts));
  const DecodeScratch scratch = decode_scratch(target, d.kv_heads);
  return {.partials = carver.take<float>(scratch.floats),
          .finished = carver.take_zeros<int>(scratch.counters),
          .decode_tokens = carver.take<int32_t>(needs.config.max_tokens),
          .tiles = carver.take<AttendTile>(max_attend_tiles(needs.config.max_tokens))};
}

HeadArena carve_head(const BackendConfig& config, Carver& carver) {
  const HeadConfig& head = *config.head;
  const Dims& d = config.dims;
  const int64_t tokens = config.max_tokens, rows = config.max_rows, width = head.taps * head.target_hidden;
  return {.taps = carver.take<float>(tokens * width),
          .rounded_taps = carver.take<Bf16>(tokens * width),
          .x = carver.take<Bf16>(std::max(tokens, rows) * 2 * d.hidden),
          .attended = carver.take<Bf16>(tokens * d.q_width()),
          .gated = carver.take<Bf16>(tokens * d.inter),
          .features = carver.take<float>(rows * d.hidden),
          .target_ids = head.target_ids.empty() ? nullptr : carver.take<int32_t>(d.vocab)};
}

ExpertSlots carve_slots(const Dims& d, Carver& carver) {
  const int64_t experts = expert_parts(d).each;
  ExpertSlots a;
  for (ExpertSlots::Slot& slot : a.slots)
    slot = {.gate_up = carver.take<uint8_t>(packed_expert_bytes(WeightRole::kGateUp, d) * experts),
            .down = carver.take<uint8_t>(packed_expert_bytes(WeightRole::kDown, d) * experts)};
  return a;
}

StepArena carve_step(const BackendConfig& config, Carver& carver) {
  const auto kinds = std::ssize(kinds_of(config.dims));
  StepArena a;
  a.pitch = std::max<int64_t>(8, (config.max_tokens + 3) / 4 * 4);
  a.rows = carver.take<int32_t>((4 + kinds) * a.pitch);
  a.row_pages = most_row_pages(config);
  a.page_ids = std::min<int64_t>(config.max_tokens, kMaxStepRows) * a.row_pages;
  for (int32_t*& pages : std::span(a.pages).first(static_cast<size_t>(kinds))) pages = carver.take<int32_t>(a.page_ids);
  a.logit_tokens = carver.take<int32_t>(config.max_rows);
  return a;
}

}  // namespace

ArenaNeeds arena_needs(const BackendConfig& config, const RunConfig& run, const Card& card) {
  const KernelFamily family = choose_family(config, run);
  return {.config = config,
          .kv = run.kv_type(),
          .matrices = family == KernelFamily::kReference ? Matrices::kRowOrder : Matrices::kPacked,
          .gemms = has_gemms(family),
          .flash = choose_flash(config, run),
          .screen = screens_logits(config, run, card.facts),
          .expert_slots = may_copy_experts(config, run),
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
  a.expert_out = carver.take<float>(pairs * d.hidden);
  a.logits = carver.take<float>(rows * d.vocab);
  a.lists = carve_lists(d, pairs, kMoeTileTokens, carver);
  if (needs.matrices == Matrices::kPacked)
    a.packed = carve_packed(needs, carver);
  else if (!config.head)
    a.row_order = carve_row_order(config, carver);
  if (needs.gemms) a.gemm = carve_gemms(needs, carver);
  if (needs.flash) a.attend = carve_attention(needs, carver);
  if (config.head) a.head = carve_head(config, carver);
  if (needs.expert_slots) a.expert_slots = carve_slots(d, carver);
  a.step = carve_step(config, carver);
  a.rope = {.inv_freq = carver.take<float>(d.head_dim / 2),
            .cosine = carver.take<float>(tokens * d.head_dim / 2),
            .sine = carver.take<float>(tokens * d.head_dim / 2)};
  a.sample = {.params = carver.take<SampleRowParams>(rows),
              .threshold = carver.take<uint64_t>(rows),
              .part_value = carver.take<float>(rows * kSampleParts),
              .part_token = carver.take<int32_t>(rows * kSampleParts),
              .tokens = carver.take<int32_t>(rows)};
  if (needs.screen) a.screen = carve_screen(config, carver);
  for (const LayerKind kind : config.layer_kinds)
    a.kv.push_back(carve_pages(d, config.kv_pages[static_cast<size_t>(kind)], needs.kv, carver));
  return a;
}

}  // namespace nibble::backend::cuda
