#pragma once
// For tests of ranks on emulated cards: a card, and a model of two layers whose half and quarter are shapes that every
// kernel takes.

#include "backend/cuda/card/device_facts.h"
#include "model/gpt_oss.h"

#include <cstdint>

namespace nibble::test {

inline const backend::cuda::DeviceFacts kCard = {.name = "a card",
                                                 .major = 9,
                                                 .minor = 0,
                                                 .multiprocessors = 132,
                                                 .memory_bytes = int64_t{1} << 37,
                                                 .cta_smem_bytes = 232448,
                                                 .sm_smem_bytes = 233472};

inline model::ModelConfig small_model_of_ranks() {
  model::ModelConfig config = model::preset("tiny");
  config.dims.layers = 2;
  config.dims.hidden = 192;
  config.dims.inter = 768;
  config.dims.heads = 16;
  config.dims.kv_heads = 4;
  config.dims.head_dim = 64;
  config.dims.vocab = 1024;
  config.layer_kinds = model::alternating_layers(2);
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {1};
  return config;
}

}  // namespace nibble::test
