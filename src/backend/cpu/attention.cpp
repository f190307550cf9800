#include "backend/cpu/attention.h"

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

// One token's heads.
struct Token {
  const float* q;  // [heads of the group, head_dim]
  float* out;
  Running* state;  // [heads of the group]
};

struct KeyRange {
  int from, to;
};

// The scores of one head become the weights of its values; what came before is scaled to the new top.
void weigh(const AttendBlock& args, std::span<float> scores, Running& state, float* out) {
  const int64_t dim = args.dims.head_dim;
  const float top = args.kernels.scale_max(1.0f / std::sqrt(static_cast<float>(dim)), scores);
  if (top > state.top) {
    const float shrink = std::exp(state.top - top);
    state.sum *= shrink;
    for (int64_t d = 0; d < dim; ++d) out[d] *= shrink;
    state.top = top;
  }
  state.sum += args.kernels.exp_sum(state.top, scores);
}

// Adds a page that all tokens of the block see whole, a head at a time, so that its rows are the tokens.
void add_whole_page(const AttendBlock& args, int32_t page, Running* states) {
  const int64_t dim = args.dims.head_dim, group = args.dims.heads / args.dims.kv_heads;
  alignas(64) std::array<float, size_t{kAttendTokens} * kPageTokens> scores;
  for (int64_t h = 0; h < group; ++h) {
    std::fill_n(scores.begin(), args.tokens * kPageTokens, 0.0f);
    args.kernels.accumulate({.a = args.q + h * dim,
                             .a_stride = args.stride,
                             .rows = args.tokens,
                             .from = 0,
                             .to = static_cast<int>(dim),
                             .b = args.cache.keys(page, args.kv_head),
                             .b_width = kPageTokens,
                             .b_is_bf16 = args.cache.is_bf16(),
                             .c = scores.data(),
                             .c_stride = kPageTokens});
    for (int t = 0; t < args.tokens; ++t) {
      const auto seen = std::span(scores).subspan(static_cast<size_t>(t) * kPageTokens, kPageTokens);
      weigh(args, seen, states[t * group + h], args.out + t * args.stride + h * dim);
    }
    args.kernels.accumulate({.a = scores.data(),
                             .a_stride = kPageTokens,
                             .rows = args.tokens,
                             .from = 0,
                             .to = kPageTokens,
                             .b = args.cache.values(page, args.kv_head),
                             .b_width = dim,
                             .b_is_bf16 = args.cache.is_bf16(),
                             .c = args.out + h * dim,
                             .c_stride = args.stride});
  }
}

// Adds a range of the page's keys to a token.
void add_page(const AttendBlock& args, const Token& token, int32_t page, KeyRange range) {
  const int64_t dim = args.dims.head_dim;
  const auto group = static_cast<int>(args.dims.heads / args.dims.kv_heads);
  alignas(64) std::array<float, size_t{kMaxGroup} * kPageTokens> scores;
  std::fill_n(scores.begin(), group * kPageTokens, 0.0f);
  args.kernels.accumulate({.a = token.q,
                           .a_stride = dim,
                           .rows = group,
                           .from = 0,
                           .to = static_cast<int>(dim),
                           .b = args.cache.keys(page, args.kv_head),
                           .b_width = kPageTokens,
                           .b_is_bf16 = args.cache.is_bf16(),
                           .c = scores.data(),
                           .c_stride = kPageTokens});
  for (int h = 0; h < group; ++h) {
    const auto seen = std::span(scores).subspan(static_cast<size_t>(h * kPageTokens + range.from),
                                                static_cast<size_t>(range.to - range.from));
    weigh(args, seen, token.state[h], token.out + h * dim);
  }
  args.kernels.accumulate({.a = scores.data(),
                           .a_stride = kPageTokens,
                           .rows = group,
                           .from = range.from,
                           .to = range.to,
                           .b = args.cache.values(page, args.kv_head),
                           .b_width = dim,
                           .b_is_bf16 = args.cache.is_bf16(),
                           .c = token.out,
                           .c_stride = dim});
}

}  // namespace

void attend_block(const AttendBlock& args) {
  const int64_t dim = args.dims.head_dim, group = args.dims.heads / args.dims.kv_heads;
  std::array<Running, size_t{kMaxGroup} * kAttendTokens> states;
  const auto first_seen = [&](int64_t position) {
    return args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
  };
  for (int t = 0; t < args.tokens; ++t) {
    std::fill_n(args.out + t * args.stride, group * dim, 0.0f);
    for (int64_t h = 0; h < group && !args.sinks.empty(); ++h) {  // the sink is a key without a value
      states[static_cast<size_t>(t * group + h)] = {.top = args.sinks[static_cast<size_t>(h)], .sum = 1};
    }
  }
  const int64_t last = args.first_position + args.tokens - 1;
  for (int64_t page = first_seen(args.first_position) / kPageTokens; page <= last / kPageTokens; ++page) {
    const int64_t base = page * kPageTokens;
    const bool whole = first_seen(last) <= base && args.first_position >= base + kPageTokens - 1;
    if (whole && args.tokens > group) {  // more rows than a token has
      add_whole_page(args, args.pages[static_cast<size_t>(page)], states.data());
      continue;
    }
    for (int t = 0; t < args.tokens; ++t) {
      const int64_t position = args.first_position + t;
      const int64_t from = std::max<int64_t>(first_seen(position) - base, 0);
      const int64_t to = std::min<int64_t>(position - base + 1, kPageTokens);
      if (from >= to) continue;
      add_page(args,
               {.q = args.q + t * args.stride, .out = args.out + t * args.stride, .state = states.data() + t * group},
               args.pages[static_cast<size_t>(page)], {static_cast<int>(from), static_cast<int>(to)});
    }
  }
  for (int t = 0; t < args.tokens; ++t) {
    for (int64_t h = 0; h < group; ++h) {
      const float inverse = 1.0f / states[static_cast<size_t>(t * group + h)].sum;
      for (int64_t d = 0; d < dim; ++d) args.out[t * args.stride + h * dim + d] *= inverse;
    }
  }
}

}  // namespace nibble::backend::cpu
