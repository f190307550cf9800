#pragma once
// An EAGLE-3 head's weights in a card's memory.

#include "backend/cuda/card/device.h"
#include "backend/draft_head.h"
#include "base/dtype.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// Matrices of one input below each other.
struct CardProduct {
  const Bf16* weight = nullptr;  // [rows, cols]
  const float* bias = nullptr;   // [rows]; none where no matrix has one
  int rows = 0, cols = 0;
};

struct CardHeadLayer {
  const float* input_norm = nullptr;
  const float* hidden_norm = nullptr;  // of layer 0
  const float* post_attention_norm = nullptr;
  CardProduct qkv, o, gate_up, down;
};

class CardHead {
 public:
  // Uploads; the host's weights may go when this returns.
  CardHead(const HeadWeights& head, cudaStream_t stream);

  HeadDims dims;
  int64_t taps_width = 0;  // taps * target hidden
  std::optional<CardProduct> fc;
  const float* tap_norms = nullptr;  // [taps width]; none: they are not normed
  int tap_segments = 1;              // parts of the taps that have a norm each
  const float* target_norm = nullptr;
  std::vector<CardHeadLayer> layers;
  const float* norm = nullptr;
  const Bf16* embedding = nullptr;
  CardProduct lm_head;
  const int32_t* target_ids = nullptr;
  const float* rope_inv_freq = nullptr;
  float rope_concentration = 1, eps = 0, target_eps = 0;
  std::optional<int64_t> sliding_window;
  bool norm_before_residual = false, norm_output = false;
  std::optional<int32_t> mask_token;

 private:
  template <class T>
  const T* upload(std::span<const T> values);
  CardProduct upload(std::initializer_list<const HeadMatrix*> matrices);

  cudaStream_t stream_;
  std::vector<DeviceBytes> owned_;
};

}  // namespace nibble::backend::cuda
