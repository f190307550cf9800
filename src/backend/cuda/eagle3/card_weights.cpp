#include "backend/cuda/eagle3/card_weights.h"

#include "backend/cuda/eagle3/memory.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

// Rows of a matrix, at a time, so that no second copy of it is made on the host.
constexpr int64_t kUploadValues = int64_t{16} << 20;

}  // namespace

template <class T>
const T* CardHead::upload(std::span<const T> values) {
  if (values.empty()) return nullptr;
  const size_t bytes = values.size_bytes();
  owned_.push_back(allocate_device(static_cast<int64_t>(bytes), "a head's weights"));
  void* const to = owned_.back().get();
  cuda_check(cudaMemcpyAsync(to, values.data(), bytes, cudaMemcpyHostToDevice, stream_));
  cuda_check(cudaStreamSynchronize(stream_));
  return static_cast<const T*>(to);
}

CardProduct CardHead::upload(std::initializer_list<const HeadMatrix*> matrices) {
  CardProduct product{.cols = static_cast<int>((*matrices.begin())->cols())};
  bool biased = false;
  for (const HeadMatrix* matrix : matrices) {
    product.rows += static_cast<int>(matrix->rows());
    biased = biased || !matrix->bias.empty();
  }
  owned_.push_back(allocate_device(int64_t{2} * product.rows * product.cols, "a head's weights"));
  auto* to = reinterpret_cast<Bf16*>(owned_.back().get());
  product.weight = to;
  std::vector<float> bias, row(static_cast<size_t>(product.cols));
  std::vector<Bf16> rounded;
  for (const HeadMatrix* matrix : matrices) {
    bias.insert(bias.end(), matrix->bias.begin(), matrix->bias.end());
    bias.resize(bias.size() + (matrix->bias.empty() ? static_cast<size_t>(matrix->rows()) : 0));
    const int64_t at_once = std::max<int64_t>(1, kUploadValues / product.cols);
    for (int64_t from = 0; from < matrix->rows(); from += at_once) {
      const int64_t count = std::min(at_once, matrix->rows() - from);
      const void* values = matrix->values.bytes.data() + 2 * from * product.cols;
      if (matrix->values.dtype != DType::kBf16) {
        rounded.clear();
        for (int64_t r = from; r < from + count; ++r) {
          matrix->decode(r, row.data());
          for (const float value : row) rounded.push_back(Bf16::from_float(value));
        }
        values = rounded.data();
      }
      cuda_check(
          cudaMemcpyAsync(to, values, static_cast<size_t>(2 * count * product.cols), cudaMemcpyHostToDevice, stream_));
      cuda_check(cudaStreamSynchronize(stream_));
      to += count * product.cols;
    }
  }
  if (biased) product.bias = upload(std::span<const float>(bias));
  return product;
}

CardHead::CardHead(const HeadWeights& head, cudaStream_t stream)
    : dims(head.dims),
      taps_width(head.dims.taps * head.dims.target_hidden),
      rope_concentration(head.rope_concentration),
      eps(static_cast<float>(head.rms_eps)),
      target_eps(head.target_eps),
      sliding_window(head.sliding_window),
      norm_before_residual(head.norm_before_residual),
      norm_output(head.norm_output),
      mask_token(head.mask_token),
      stream_(stream) {
  const auto floats = [&](const std::vector<float>& values) { return upload(std::span<const float>(values)); };
  if (head.fc) fc = upload({&*head.fc});
  std::vector<float> norms;
  for (const std::vector<float>& of_taps : head.tap_norms) norms.insert(norms.end(), of_taps.begin(), of_taps.end());
  tap_norms = floats(norms);
  tap_segments = static_cast<int>(std::max<size_t>(1, head.tap_norms.size()));
  target_norm = floats(head.target_norm);
  for (const HeadLayer& layer : head.layers) {
    layers.push_back({.input_norm = floats(layer.input_norm),
                      .hidden_norm = floats(layer.hidden_norm),
                      .post_attention_norm = floats(layer.post_attention_norm),
                      .qkv = upload({&layer.q, &layer.k, &layer.v}),
                      .o = upload({&layer.o}),
                      .gate_up = upload({&layer.gate, &layer.up}),
                      .down = upload({&layer.down})});
  }
  norm = floats(head.norm);
  embedding = upload({&head.embedding}).weight;
  lm_head = upload({&head.lm_head});
  target_ids = upload(std::span<const int32_t>(head.target_ids));
  rope_inv_freq = floats(head.rope_inv_freq);
}

}  // namespace nibble::backend::cuda
