#include "backend/cpu/head_products.h"

#include "backend/cpu/linear.h"
#include "base/error.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble::backend::cpu {
namespace {

WeightFormat format_of(DType dtype) {
  return dtype == DType::kF32 ? WeightFormat::kF32 : dtype == DType::kF16 ? WeightFormat::kF16 : WeightFormat::kBf16;
}

class Products final : public HeadProducts {
 public:
  Products(const HeadWeights& head, const Kernels& kernels, Activations activations, ThreadPool& pool)
      : activations_(activations == Activations::kInt8 ? activations : Activations::kF32), all_(kRows) {
    std::iota(all_.begin(), all_.end(), 0);
    if (head.fc) hold(*head.fc, kernels, pool);
    for (const HeadLayer& layer : head.layers)
      for (const HeadMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
        hold(*matrix, kernels, pool);
    hold(head.lm_head, kernels, pool);
    int64_t cols = 0;
    for (const auto& [bytes, matrix] : held_) cols = std::max(cols, matrix.cols());
    linear_.emplace(kernels, activations_, pool, Linear::Limits{.cols = cols, .inputs = kRows, .groups = 1});
  }

  void multiply(std::span<const float> x, const HeadMatrix& matrix, float* y) override {
    const auto found = held_.find(matrix.values.bytes.data());
    check(found != held_.end(), "a matrix of the head");
    const int64_t cols = matrix.cols(), rows = matrix.rows(), count = std::ssize(x) / cols;
    for (int64_t first = 0; first < count; first += kRows) {
      const int64_t some = std::min(kRows, count - first);
      const Group group{.weight = &found->second, .tokens = std::span(all_).first(static_cast<size_t>(some))};
      linear_->run_whole({x.data() + first * cols, {some, cols}}, {&group, 1}, activations_, [&](const Tile& tile) {
        for (int t = 0; t < tile.tokens; ++t) {
          float* const out = y + (first + tile.from + t) * rows + tile.row;
          std::copy_n(tile.out + t * kTileRows, tile.rows, out);
          for (int r = 0; !matrix.bias.empty() && r < tile.rows; ++r)
            out[r] += matrix.bias[static_cast<size_t>(tile.row + r)];
        }
      });
    }
  }

 private:
  static constexpr int64_t kRows = 64;  // of a pass over the weights

  void hold(const HeadMatrix& matrix, const Kernels& kernels, ThreadPool& pool) {
    const auto [at, fresh] =
        held_.try_emplace(matrix.values.bytes.data(),
                          HostWeight{.format = format_of(matrix.values.dtype), .values = matrix.values, .scales = {}});
    if (fresh && activations_ == Activations::kInt8 && matrix.cols() % kMxBlock == 0)
      at->second.requantise(WeightFormat::kMxfp4, kernels, pool);
  }

  const Activations activations_;
  std::vector<int32_t> all_;                           // 0, 1, 2, …
  std::unordered_map<const std::byte*, Matrix> held_;  // by where the head's bytes lie
  std::optional<Linear> linear_;
};

}  // namespace

std::unique_ptr<HeadProducts> make_head_products(const HeadWeights& head, const Kernels& kernels,
                                                 Activations activations, ThreadPool& pool) {
  return std::make_unique<Products>(head, kernels, activations, pool);
}

}  // namespace nibble::backend::cpu
