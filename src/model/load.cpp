#include "model/load.h"

namespace nibble::model {

GptOss load(backend::Backend& be, const ModelConfig& config, std::span<const backend::HostWeight> weights,
            const std::function<void(const LoadProgress&)>& progress) {
  const auto bytes = [](const backend::HostWeight& w) {
    return static_cast<int64_t>(w.values.bytes.size() + w.scales.bytes.size() + w.odd.bytes.size());
  };
  LoadProgress state;
  for (const backend::HostWeight& weight : weights) state.total_bytes += bytes(weight);
  GptOss model;
  model.config = config;
  model.weights.layers.resize(static_cast<size_t>(config.dims.layers));
  for (const backend::HostWeight& weight : weights) {
    backend::LayerWeights& layer =
        weight.layer < 0 ? model.weights.outer : model.weights.layers[static_cast<size_t>(weight.layer)];
    layer[weight.role] = be.upload(weight);
    state.done_bytes += bytes(weight);
    if (progress) progress(state);
  }
  be.finish_upload();
  return model;
}

}  // namespace nibble::model
