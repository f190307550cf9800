#include "model/eagle3/head.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace nibble::model::eagle3 {
namespace {

constexpr int64_t kWorthThreads = 1 << 18;  // products; below that, waking threads takes longer

// Sixteen independent sums, which the compiler keeps in lanes.
float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(lane)] += a[i + lane] * b[i + lane];
  float sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Each row of x [rows, cols] times the matrix, plus its bias: [rows, matrix rows].
std::vector<float> linear(std::span<const float> x, const Matrix& matrix, const Workers& workers) {
  const int64_t cols = matrix.cols(), outs = matrix.rows(), rows = std::ssize(x) / cols;
  std::vector<float> y(static_cast<size_t>(rows * outs));
  if (workers.products != nullptr) {
    workers.products->multiply(x, matrix, y.data());
    return y;
  }
  const auto some = [&](IndexRange range) {
    std::vector<float> weights(static_cast<size_t>(cols));
    for (int64_t out = range.begin; out < range.end; ++out) {
      matrix.decode(out, weights.data());
      const float bias = matrix.bias.empty() ? 0.0f : matrix.bias[static_cast<size_t>(out)];
      for (int64_t r = 0; r < rows; ++r)
        y[static_cast<size_t>(r * outs + out)] = dot(x.data() + r * cols, weights.data(), cols) + bias;
    }
  };
  if (rows * outs * cols < kWorthThreads)
    some({.begin = 0, .end = outs, .thread_idx = 0});
  else
    workers.pool.parallel_for(outs, some);
  return y;
}

// Of each row as long as the scale.
void rmsnorm(std::span<float> x, std::span<const float> scale, double eps) {
  const size_t width = scale.size();
  for (size_t first = 0; first < x.size(); first += width) {
    double sum = 0;
    for (size_t d = 0; d < width; ++d) sum += double{x[first + d]} * double{x[first + d]};
    const auto inverse = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + eps));
    for (size_t d = 0; d < width; ++d) x[first + d] *= inverse * scale[d];
  }
}

std::vector<float> normed(std::vector<float> x, std::span<const float> scale, double eps) {
  rmsnorm(x, scale, eps);
  return x;
}

void add(std::vector<float>& to, const std::vector<float>& what) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

// Rows of a beside rows of b.
std::vector<float> beside(const std::vector<float>& a, const std::vector<float>& b, int64_t width) {
  std::vector<float> all;
  all.reserve(a.size() + b.size());
  for (auto first = a.begin(), second = b.begin(); first != a.end(); first += width, second += width) {
    all.insert(all.end(), first, first + width);
    all.insert(all.end(), second, second + width);
  }
  return all;
}

}  // namespace

Head::Head(Weights weights) : w_(std::move(weights)) {}

std::vector<float> Head::features(std::span<const float> residuals, const Workers& workers) const {
  std::vector<float> x(residuals.begin(), residuals.end());
  if (!w_.fc) return normed(std::move(x), w_.target_norm, w_.target_eps);
  // One norm is as long as all taps, or there is one for each.
  const size_t norms = w_.tap_norms.size();
  for (size_t first = 0, n = 0; norms > 0 && first < x.size(); first += w_.tap_norms[n].size(), n = (n + 1) % norms)
    rmsnorm(std::span(x).subspan(first, w_.tap_norms[n].size()), w_.tap_norms[n], w_.rms_eps);
  return linear(x, *w_.fc, workers);
}

Head::Read Head::read(std::span<const Rows> sequences, const Workers& workers) const {
  const int64_t hidden = w_.dims.hidden;
  std::vector<float> embedded, residual;
  for (const Rows& rows : sequences) {
    Cache& cache = *rows.cache;
    check(!rows.tokens.empty() && (cache.positions.empty() || cache.positions.back() < rows.position),
          "rows come in order");
    check(std::ssize(rows.features) == std::ssize(rows.tokens) * hidden, "a feature for each token");
    cache.layers.resize(w_.layers.size());
    for (int64_t r = 0; r < std::ssize(rows.tokens); ++r) cache.positions.push_back(rows.position + r);
    residual.insert(residual.end(), rows.features.begin(), rows.features.end());
    for (const int32_t token : rows.tokens) {
      embedded.resize(embedded.size() + static_cast<size_t>(hidden));
      w_.embedding.decode(token, embedded.data() + std::ssize(embedded) - hidden);
    }
  }
  for (size_t n = 0; n < w_.layers.size(); ++n) {
    const Layer& layer = w_.layers[n];
    std::vector<float> x;
    if (n == 0) {
      std::vector<float> read = normed(residual, layer.hidden_norm, w_.rms_eps);
      x = beside(normed(std::move(embedded), layer.input_norm, w_.rms_eps), read, hidden);
      if (w_.norm_before_residual) residual = std::move(read);
    } else {
      x = normed(residual, layer.input_norm, w_.rms_eps);
    }
    std::vector<float> q = linear(x, layer.q, workers), k = linear(x, layer.k, workers);
    const std::vector<float> v = linear(x, layer.v, workers);
    std::vector<float> attended(q.size());
    const auto q_width = static_cast<size_t>(layer.q.rows()), k_width = static_cast<size_t>(kv_width());
    size_t row = 0;
    for (const Rows& rows : sequences) {
      const size_t first = row;
      for (int64_t position = rows.position; row < first + rows.tokens.size(); ++row, ++position) {
        rotate(std::span(q).subspan(row * q_width, q_width), position);
        rotate(std::span(k).subspan(row * k_width, k_width), position);
      }
      Cache::Layer& kept = rows.cache->layers[n];
      const auto at = static_cast<std::ptrdiff_t>(first * k_width), end = static_cast<std::ptrdiff_t>(row * k_width);
      kept.keys.insert(kept.keys.end(), k.begin() + at, k.begin() + end);
      kept.values.insert(kept.values.end(), v.begin() + at, v.begin() + end);
      const size_t from = first * q_width, count = (row - first) * q_width;
      attend(std::span(q).subspan(from, count), *rows.cache, kept, std::span(attended).subspan(from, count), workers);
    }
    add(residual, linear(attended, layer.o, workers));
    x = normed(residual, layer.post_attention_norm, w_.rms_eps);
    std::vector<float> gate = linear(x, layer.gate, workers);
    const std::vector<float> up = linear(x, layer.up, workers);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0f + std::exp(-gate[i]));
    add(residual, linear(gate, layer.down, workers));
  }
  Read result;
  result.normed = normed(residual, w_.norm, w_.rms_eps);
  result.next = w_.norm_output ? result.normed : std::move(residual);
  return result;
}

// q [rows, heads * head_dim] of the cache's last rows; each sees the rows before it and itself.
void Head::attend(std::span<const float> q, const Cache& cache, const Cache::Layer& layer, std::span<float> out,
                  const Workers& workers) const {
  const int64_t dim = w_.dims.head_dim, heads = w_.dims.heads, shared = heads / w_.dims.kv_heads;
  const int64_t rows = std::ssize(q) / (heads * dim), before = std::ssize(cache.positions) - rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const auto some = [&](IndexRange range) {
    std::vector<float> share;
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t row = i / heads, kv = i % heads / shared * dim, end = before + row + 1;
      int64_t first = 0;
      if (w_.sliding_window) {
        const int64_t least = cache.positions[static_cast<size_t>(end - 1)] - *w_.sliding_window + 1;
        first = std::ranges::lower_bound(cache.positions, least) - cache.positions.begin();
      }
      share.clear();
      for (int64_t s = first; s < end; ++s)
        share.push_back(scale * dot(q.data() + i * dim, layer.keys.data() + s * kv_width() + kv, dim));
      const float most = *std::ranges::max_element(share);
      float sum = 0;
      for (float& value : share) sum += value = std::exp(value - most);
      float* const to = out.data() + i * dim;
      for (int64_t s = first; s < end; ++s) {
        const float* const value = layer.values.data() + s * kv_width() + kv;
        const float weight = share[static_cast<size_t>(s - first)] / sum;
        for (int64_t d = 0; d < dim; ++d) to[d] += weight * value[d];
      }
    }
  };
  if (rows * heads * std::ssize(cache.positions) * dim < kWorthThreads)
    some({.begin = 0, .end = rows * heads, .thread_idx = 0});
  else
    workers.pool.parallel_for(rows * heads, some);
}

// Heads beside each other; halves d and d + head_dim / 2.
void Head::rotate(std::span<float> row, int64_t position) const {
  const size_t half = w_.rope_inv_freq.size();
  for (size_t d = 0; d < half; ++d) {
    const double angle = static_cast<double>(position) * double{w_.rope_inv_freq[d]};
    const auto cosine = static_cast<float>(std::cos(angle) * w_.rope_concentration);
    const auto sine = static_cast<float>(std::sin(angle) * w_.rope_concentration);
    for (size_t head = 0; head < row.size(); head += 2 * half) {
      float &a = row[head + d], &b = row[head + half + d];
      const float first = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = first;
    }
  }
}

std::vector<float> Head::logits(std::span<const float> rows, const Workers& workers) const {
  std::vector<float> logits = linear(rows, w_.lm_head, workers);
  for (float& logit : logits) logit *= static_cast<float>(w_.logit_scale);
  return logits;
}

std::vector<int32_t> Head::draft(std::span<const float> rows, const Workers& workers) const {
  const std::vector<float> all = logits(rows, workers);
  std::vector<int32_t> tokens;
  for (auto row = all.begin(); row != all.end(); row += w_.lm_head.rows()) {
    const auto best = static_cast<size_t>(std::max_element(row, row + w_.lm_head.rows()) - row);
    tokens.push_back(w_.target_ids.empty() ? static_cast<int32_t>(best) : w_.target_ids[best]);
  }
  return tokens;
}

void Head::keep(Cache& cache, size_t rows) const {
  cache.positions.resize(rows);
  for (Cache::Layer& layer : cache.layers) {
    layer.keys.resize(rows * static_cast<size_t>(kv_width()));
    layer.values.resize(rows * static_cast<size_t>(kv_width()));
  }
}

}  // namespace nibble::model::eagle3
