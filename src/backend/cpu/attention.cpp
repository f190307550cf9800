#include "backend/cpu/attention.h"

#include "backend/cpu/simd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace nibble::backend::cpu {
namespace {

struct Running {
  float top = -std::numeric_limits<float>::infinity();  // largest score so far
  float sum = 0;                                        // of exp(score - top)
};

// Adds the page's tokens [from, to) to one head's running softmax.
void add_page(const AttendGroup& args, int head, const float* keys, const float* values, int from, int to,
              Running& state, float* scores) {
  const int dim = args.dims.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const float* q = args.q + int64_t{head} * dim;
  float* out = args.out + int64_t{head} * dim;
  float top = state.top;
  for (int i = from; i < to; i += kDotTokens) {
    const int count = std::min(kDotTokens, to - i);
    std::array<const float*, kDotTokens> rows{};
    for (int j = 0; j < count; ++j) rows[static_cast<size_t>(j)] = keys + int64_t{i + j} * dim;
    dot(q, rows, count, dim, scores + i);
    for (int j = i; j < i + count; ++j) top = std::max(top, scores[j] *= scale);
  }
  if (top > state.top) {
    const float shrink = std::exp(state.top - top);
    state.sum *= shrink;
    for (int d = 0; d < dim; ++d) out[d] *= shrink;
    state.top = top;
  }
  for (int i = from; i < to; ++i) {
    const float p = std::exp(scores[i] - top);
    state.sum += p;
    axpy(p, values + int64_t{i} * dim, dim, out);
  }
}

}  // namespace

void attend_group(const AttendGroup& args) {
  const Dims& dims = args.dims;
  const int group = dims.heads / dims.kv_heads;
  std::array<Running, kMaxGroup> state;
  for (int h = 0; h < group && !args.sinks.empty(); ++h) {  // the sink is a key without a value
    state[static_cast<size_t>(h)] = {.top = args.sinks[static_cast<size_t>(h)], .sum = 1};
  }
  std::fill_n(args.out, int64_t{group} * dims.head_dim, 0.0f);
  float* key_rows = args.scratch;
  float* value_rows = key_rows + int64_t{kPageTokens} * dims.head_dim;
  float* scores = value_rows + int64_t{kPageTokens} * dims.head_dim;
  for (int64_t page = args.first / kPageTokens; page <= args.last / kPageTokens; ++page) {
    const int64_t base = page * kPageTokens;
    const int from = static_cast<int>(std::max<int64_t>(args.first - base, 0));
    const int to = static_cast<int>(std::min<int64_t>(args.last - base + 1, kPageTokens));
    const int32_t id = args.pages[static_cast<size_t>(page)];
    const float* keys = args.cache.keys(id, args.kv_head, to, key_rows);
    const float* values = args.cache.values(id, args.kv_head, to, value_rows);
    for (int h = 0; h < group; ++h) add_page(args, h, keys, values, from, to, state[static_cast<size_t>(h)], scores);
  }
  for (int h = 0; h < group; ++h) {
    const float inverse = 1.0f / state[static_cast<size_t>(h)].sum;
    for (int d = 0; d < dims.head_dim; ++d) args.out[int64_t{h} * dims.head_dim + d] *= inverse;
  }
}

}  // namespace nibble::backend::cpu
