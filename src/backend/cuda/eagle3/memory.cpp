#include "backend/cuda/eagle3/memory.h"

#include "backend/cuda/memory/arena.h"
#include "base/error.h"

#include <algorithm>
#include <string_view>

namespace nibble::backend::cuda {

int64_t Eagle3Memory::inputs_capacity(const Eagle3Setup& setup) {
  constexpr int64_t kRowTables = 5;
  return kRowTables * kDraftRows + 2 * kTokens + eagle3_pages(setup);
}

Eagle3Memory carve(const HeadWeights& head, const Eagle3Setup& setup, int multiprocessors, std::byte* base) {
  const HeadDims& d = head.dims;
  constexpr int64_t kTokens = Eagle3Memory::kTokens, kRows = Eagle3Memory::kDraftRows;
  Carver carver(base);
  Eagle3Memory m;
  m.taps = carver.take<float>((kTokens + (head.mask_token ? 1 : 0)) * d.taps * d.target_hidden);
  m.rounded_taps = carver.take<Bf16>(kTokens * d.taps * d.target_hidden);
  m.feature = carver.take<float>(kTokens * d.hidden);
  m.residual = carver.take<float>(kTokens * d.hidden);
  m.kept = carver.take<float>(setup.sequences * d.hidden);
  m.x = carver.take<Bf16>(kTokens * 2 * d.hidden);
  m.normed = carver.take<Bf16>(kTokens * d.hidden);
  m.q = carver.take<float>(kTokens * d.heads * d.head_dim);
  m.attended = carver.take<Bf16>(kTokens * d.heads * d.head_dim);
  m.gated = carver.take<Bf16>(kTokens * d.inter);
  m.best = carver.take<Eagle3Best>(kTokens * eagle3_row_tiles(static_cast<int>(d.draft_vocab)));
  m.cosine = carver.take<float>(kRows * d.head_dim / 2);
  m.sine = carver.take<float>(kRows * d.head_dim / 2);
  m.parts = carver.take<float>(eagle3_parts_bytes(static_cast<int>(d.head_dim), multiprocessors) / 4);
  m.finished = carver.take<int>(kTokens * d.heads);
  m.drafts = carver.take<int32_t>(kRows);
  m.inputs = carver.take<int32_t>(Eagle3Memory::inputs_capacity(setup));
  const int64_t page = d.kv_heads * kEagle3PageRows * d.head_dim;
  for (size_t n = 0; n < head.layers.size(); ++n) {
    Bf16* const keys = carver.take<Bf16>(eagle3_pages(setup) * page);
    m.pages.push_back({keys, carver.take<Bf16>(eagle3_pages(setup) * page)});
  }
  m.bytes = carver.bytes();
  return m;
}

Eagle3Setup head_setup(const BackendConfig& config, const RunConfig& run, int device) {
  return {.device = device,
          .rows = int64_t{config.kv_pages[static_cast<size_t>(LayerKind::kFull)]} * kPageTokens,
          .sequences = config.max_rows,
          .graphs = !run.eager};
}

int64_t eagle3_weight_bytes(const HeadWeights& head) {
  int64_t values = 0, floats = 0;
  const auto add = [&](const HeadMatrix& matrix) {
    values += matrix.rows() * matrix.cols();
    floats += std::ssize(matrix.bias);
  };
  if (head.fc) add(*head.fc);
  for (const HeadLayer& layer : head.layers) {
    for (const HeadMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      add(*matrix);
    floats += std::ssize(layer.input_norm) + std::ssize(layer.hidden_norm) + std::ssize(layer.post_attention_norm);
  }
  add(head.embedding);
  add(head.lm_head);
  for (const std::vector<float>& norm : head.tap_norms) floats += std::ssize(norm);
  floats += std::ssize(head.target_norm) + std::ssize(head.norm) + std::ssize(head.target_ids) +
            std::ssize(head.rope_inv_freq);
  return 2 * values + 4 * floats;
}

void require_eagle3_shapes(const HeadWeights& head) {
  const HeadDims& d = head.dims;
  const auto require = [](bool holds, std::string_view what, std::string_view want, int64_t found) {
    if (!holds) throw Error(Code::kUnsupported, "cuda: a head's {}: want {}, found {}", what, want, found);
  };
  require(d.hidden % 8 == 0 && d.hidden <= kEagle3MostHidden, "hidden_size", "a multiple of 8 up to 8192", d.hidden);
  require(d.target_hidden % 8 == 0 && d.taps * d.target_hidden <= kEagle3MostWidth, "target_hidden_size",
          "a multiple of 8, and no more than 16384 of all states that it reads", d.target_hidden);
  require(d.inter % 8 == 0, "intermediate_size", "a multiple of 8", d.inter);
  require(d.head_dim % 8 == 0 && d.head_dim <= kEagle3MostHeadDim, "head_dim", "a multiple of 8 up to 128", d.head_dim);
  require(d.heads % d.kv_heads == 0, "num_attention_heads", "a multiple of num_key_value_heads", d.heads);
  require(head.logit_scale > 0, "logit_scale", "one above 0, as 1", static_cast<int64_t>(head.logit_scale));
}

}  // namespace nibble::backend::cuda
