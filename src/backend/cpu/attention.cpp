#include "backend/cpu/attention.h"

#include "backend/kv_dtype.h"
#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

namespace nibble::backend::cpu {
namespace {

constexpr int64_t kRangeTokens = int64_t{kRangePages} * kPageTokens;
constexpr int kSetTokens = 16;     // most rows of a product: their scores stay in the first cache
constexpr int kInPlaceTokens = 2;  // most that read pages of bf16 as they are; widening them for fewer takes longer
constexpr int64_t kBlocksTogether = 4;  // of full size and 8 ranges each: room for partial sums

int64_t first_key(int64_t position, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

void prefetch(const void* page, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const std::byte*>(page) + i, 0, 2);
}

// The columns to compute of a page whose first `seen` keys are seen: whole vectors, two at a time.
int64_t seen_columns(int seen) { return std::min((seen + 31) / 32 * 32, kPageTokens); }

}  // namespace

Attention::Attention(const BackendConfig& config, const Kernels& kernels, Activations activations, ThreadPool& pool)
    : dims_(config.dims),
      kernels_(kernels),
      paired_(activations == Activations::kInt8 && dims_.head_dim == kPageTokens ? kernels.int8->paired : nullptr),
      pool_(pool),
      group_(config.dims.heads / config.dims.kv_heads) {
  if (group_ > kMaxGroup)
    throw Error(Code::kUnsupported, "num_attention_heads: want at most {} times num_key_value_heads, found {} and {}",
                kMaxGroup, dims_.heads, dims_.kv_heads);
  const int64_t pages = *std::max_element(config.kv_pages.begin(), config.kv_pages.end());
  const int64_t ranges = std::max<int64_t>(kBlocksTogether * kRangePages, pages / kRangePages + 2);
  partials_ = Buffer(ranges * dims_.kv_heads * partial_floats(kAttendTokens) * int64_t{sizeof(float)});
  widened_ = Buffer(int64_t{2} * pool.threads() * kRangeTokens * dims_.head_dim * int64_t{sizeof(float)});
  scores_ = Buffer(pool.threads() * std::max<int64_t>(kSetTokens, group_) * kRangeTokens * int64_t{sizeof(float)});
}

// As many blocks at a time as there is room for.
void Attention::run(const Args& args) {
  add_blocks(args);
  const int64_t room = partials_.bytes() / int64_t{sizeof(float)};
  for (size_t first = 0, last = 0; first < blocks_.size(); first = last) {
    int64_t used = 0;
    for (; last < blocks_.size(); ++last) {
      Block& block = blocks_[last];
      const int64_t floats = block.ranges * dims_.kv_heads * partial_floats(block.tokens);
      if (used + floats > room) break;
      block.partial_at = used;
      used += floats;
    }
    check(last > first, "a block's partial sums have room");
    attend(std::span(blocks_).subspan(first, last - first), args);
  }
}

void Attention::add_blocks(const Args& args) {
  blocks_.clear();
  for (size_t r = 0; r < args.rows.size(); ++r) {
    const Row& row = args.rows[r];
    for (int from = 0; from < row.tokens; from += kAttendTokens) {
      const int tokens = std::min(kAttendTokens, row.tokens - from);
      const int64_t position = row.context - row.tokens + from;
      const int64_t first = first_key(position, args.window) / kRangeTokens;
      blocks_.push_back({.row = r,
                         .first_token = row.first_token + from,
                         .first_position = position,
                         .tokens = tokens,
                         .first_range = first,
                         .ranges = (position + tokens - 1) / kRangeTokens - first + 1,
                         .partial_at = 0});
    }
  }
}

void Attention::attend(std::span<const Block> blocks, const Args& args) {
  items_.clear();
  for (size_t b = 0; b < blocks.size(); ++b)
    for (int64_t i = 0; i < blocks[b].ranges; ++i) items_.push_back({b, blocks[b].first_range + i});
  // Neighbours read the same keys, or the next.
  std::sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) {
    return std::tuple(blocks[a.block].row, a.range, a.block) < std::tuple(blocks[b.block].row, b.range, b.block);
  });
  const auto count = static_cast<int64_t>(items_.size());
  pool_.parallel_ranges(count * dims_.kv_heads, 1, [&](IndexRange range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Item& item = items_[static_cast<size_t>(i % count)];
      attend_range(args, blocks[item.block], i / count, {item.range, item.range + 1, range.thread_idx});
    }
  });
  pool_.parallel_each(static_cast<int64_t>(blocks.size()) * dims_.kv_heads, [&](int64_t i) {
    join(args, blocks[static_cast<size_t>(i / dims_.kv_heads)], i % dims_.kv_heads);
  });
}

Attention::Partial Attention::partial(const Block& block, int64_t range, int64_t kv_head) const {
  const int64_t queries = block.tokens * group_, of_head = block.ranges * partial_floats(block.tokens);
  float* values = partials_.as<float>() + block.partial_at + kv_head * of_head;
  float* tops = values + queries * block.ranges * dims_.head_dim;
  float* sums = tops + queries * block.ranges;
  const int64_t i = range - block.first_range;
  return {.values = values + i * dims_.head_dim, .tops = tops + i, .sums = sums + i, .stride = block.ranges};
}

void Attention::attend_range(const Args& args, const Block& block, int64_t kv_head, IndexRange range) const {
  const Partial sums = partial(block, range.begin, kv_head);
  const int64_t dim = dims_.head_dim, width = dims_.q_width();
  const Pages pages = read(args, block, kv_head, range);
  float* const scores = scores_.as<float>() + range.thread_idx * std::max<int64_t>(kSetTokens, group_) * kRangeTokens;
  const float* q = args.q + block.first_token * width + kv_head * group_ * dim;
  const bool heads_apart = by_head(block);
  const int step = heads_apart ? kSetTokens : 1;
  for (int64_t head = 0; head < (heads_apart ? group_ : 1); ++head)
    for (int token = 0; token < block.tokens; token += step)
      attend_set(args,
                 {.q = q + token * width + head * dim,
                  .q_stride = heads_apart ? width : dim,
                  .rows = heads_apart ? std::min(kSetTokens, block.tokens - token) : static_cast<int>(group_),
                  .first_position = block.first_position + token,
                  .step = heads_apart ? 1 : 0,
                  .query = query(block, token, head)},
                 pages, sums, scores);
}

Attention::Pages Attention::read(const Args& args, const Block& block, int64_t kv_head, IndexRange range) const {
  const KvCache& cache = args.cache;
  const int64_t begin = first_key(block.first_position, args.window), end = block.first_position + block.tokens;
  const bool single = block.tokens == 1;
  const KvOperand operand = cache.format().operand;
  Pages pages{.first_key = range.begin * kRangeTokens,
              .from = 0,
              .to = 0,
              .keys = {},
              .values = {},
              .is_bf16 = block.tokens <= kInPlaceTokens && operand == KvOperand::kBf16,
              .paired = paired_ != nullptr && !args.as_alone && by_head(block) && operand == KvOperand::kBf16,
              .unread = false,
              .following = {}};
  pages.from = static_cast<int>(std::max<int64_t>(begin - pages.first_key, 0));
  pages.to = static_cast<int>(std::min(end - pages.first_key, kRangeTokens));
  const bool in_place = pages.is_bf16 || operand == KvOperand::kF32;
  pages.unread = single && in_place;
  const int64_t dim = dims_.head_dim, floats = kPageTokens * dim;
  const auto widen = kernels_.widening(cache.format());
  const int32_t* ids = args.pages.ids.data() + static_cast<int64_t>(block.row) * args.pages.pages_per_row;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t p = (range.begin + 1) * kRangePages + i;
    if (p * kPageTokens < end) pages.following[static_cast<size_t>(i)] = cache.keys(ids[p], kv_head).codes;
  }
  float* room = widened_.as<float>() + 2 * range.thread_idx * kRangePages * floats;
  for (int p = pages.from / kPageTokens; p * kPageTokens < pages.to; ++p) {
    const int32_t id = ids[range.begin * kRangePages + p];
    const KvPage keys = cache.keys(id, kv_head), values = cache.values(id, kv_head);
    const auto at = static_cast<size_t>(p);
    pages.keys[at] = keys.codes;
    pages.values[at] = values.codes;
    if (in_place) continue;
    const int first_value = std::max(pages.from - p * kPageTokens, 0);
    const int last_value = std::min(pages.to - p * kPageTokens, kPageTokens);
    if (pages.paired) {
      paired_->pair_rows({.page = keys.codes, .from = 0, .to = kPageTokens, .out = room});
      pages.keys[at] = std::exchange(room, room + floats);
      paired_->pair_rows({.page = values.codes, .from = first_value, .to = last_value, .out = room});
      pages.values[at] = std::exchange(room, room + floats);
      continue;
    }
    if (single && (p + 1) * kPageTokens < pages.to) {
      const int32_t next = ids[range.begin * kRangePages + p + 1];
      prefetch(cache.keys(next, kv_head).codes, cache.page_bytes());
      prefetch(cache.values(next, kv_head).codes, cache.page_bytes());
    }
    widen({.page = keys,
           .cols = kPageTokens,
           .from = 0,
           .to = static_cast<int>(dim),
           .scale_per_row = false,
           .out = room});
    pages.keys[at] = std::exchange(room, room + floats);
    widen({.page = values, .cols = dim, .from = first_value, .to = last_value, .scale_per_row = true, .out = room});
    pages.values[at] = std::exchange(room, room + floats);
  }
  return pages;
}

// A stretch of the range.
Attention::Keys Attention::seen_from(int64_t position, int64_t window, const Pages& pages) {
  const auto key_of = [&](int64_t at) {
    return static_cast<int>(std::clamp<int64_t>(at - pages.first_key, pages.from, pages.to));
  };
  return {key_of(first_key(position, window)), key_of(position + 1)};
}

float Attention::round_weights(std::span<float> weights) {
  constexpr float kMost = 1 << kWeightBits;
  float sum = 0;
  for (float& weight : weights) sum += weight = round_weight(weight * kMost) / kMost;
  return sum;
}

void Attention::weigh(const Args& args, const Set& set, const Pages& pages, const Partial& partial,
                      float* scores) const {
  const int from = seen_from(set.first_position, args.window, pages).from;
  const int to = seen_from(set.first_position + (set.rows - 1) * set.step, args.window, pages).to;
  const float factor = args.cache.format().unit / std::sqrt(static_cast<float>(dims_.head_dim));
  for (int64_t r = 0; r < set.rows; ++r) {
    float* const row = scores + r * kRangeTokens;
    const Keys seen = seen_from(set.first_position + r * set.step, args.window, pages);
    const int own_from = std::min(seen.from, to), own_to = std::max(seen.to, own_from);
    std::fill(row + from, row + own_from, 0.0f);
    std::fill(row + own_to, row + to, 0.0f);
    if (own_from == own_to) continue;
    const std::span<float> own(row + own_from, row + own_to);
    const int64_t at = (set.query + r) * partial.stride;
    float& top = partial.tops[at];
    top = kernels_.scale_max(factor, own);
    if (args.fp8) top = (weight_base(top * std::numbers::log2e_v<float>) + kWeightBits) * std::numbers::ln2_v<float>;
    partial.sums[at] = kernels_.exp_sum(top, own);
    if (args.fp8) partial.sums[at] = round_weights(own);
  }
}

void Attention::attend_set(const Args& args, const Set& set, const Pages& pages, const Partial& partial,
                           float* scores) const {
  const int64_t dim = dims_.head_dim;
  const int from = seen_from(set.first_position, args.window, pages).from;
  const int to = seen_from(set.first_position + (set.rows - 1) * set.step, args.window, pages).to;
  float* const values = partial.values + set.query * partial.stride * dim;
  for (int64_t r = 0; r < set.rows; ++r) {
    partial.tops[(set.query + r) * partial.stride] = -std::numeric_limits<float>::infinity();
    partial.sums[(set.query + r) * partial.stride] = 0.0f;
    if (from >= to) std::fill_n(values + r * partial.stride * dim, dim, 0.0f);
  }
  if (from >= to) return;
  const int first = from / kPageTokens, last = (to - 1) / kPageTokens;
  const int count = last - first + 1;
  if (pages.paired) return attend_paired(args, {set, first, count, {from, to}}, pages, partial, scores);
  const auto next_of = [&](int i) -> const void* {  // of the keys' pages and then the values', the one after the next
    if (!pages.unread) return nullptr;
    const int next = i + 2;
    if (next >= 2 * count) return pages.following[static_cast<size_t>(next - 2 * count)];
    return next < count ? pages.keys[static_cast<size_t>(first + next)]
                        : pages.values[static_cast<size_t>(first + next - count)];
  };
  for (int p = first; p <= last; ++p)
    kernels_.accumulate({.a = set.q,
                         .a_stride = set.q_stride,
                         .rows = set.rows,
                         .to = static_cast<int>(dim),
                         .b = pages.keys[static_cast<size_t>(p)],
                         .b_stride = kPageTokens,
                         .cols = seen_columns(to - p * kPageTokens),
                         .b_is_bf16 = pages.is_bf16,
                         .c = scores + p * kPageTokens,
                         .c_stride = kRangeTokens,
                         .from_zero = true,
                         .next = next_of(p - first)});
  weigh(args, set, pages, partial, scores);
  for (int p = first; p <= last; ++p)
    kernels_.accumulate({.a = scores + p * kPageTokens,
                         .a_stride = kRangeTokens,
                         .rows = set.rows,
                         .from = std::max(from - p * kPageTokens, 0),
                         .to = std::min(to - p * kPageTokens, kPageTokens),
                         .b = pages.values[static_cast<size_t>(p)],
                         .b_stride = dim,
                         .cols = dim,
                         .b_is_bf16 = pages.is_bf16,
                         .c = values,
                         .c_stride = partial.stride * dim,
                         .from_zero = p == first,
                         .next = next_of(count + p - first)});
}

void Attention::attend_paired(const Args& args, const PairedSet& of, const Pages& pages, const Partial& partial,
                              float* scores) const {
  const Set& set = of.set;
  const auto first = static_cast<size_t>(of.first_page), count = static_cast<size_t>(of.pages);
  const int begin = of.first_page * kPageTokens, end = begin + of.pages * kPageTokens;
  paired_->scores({.a = set.q,
                   .a_stride = set.q_stride,
                   .rows = set.rows,
                   .pages = std::span(pages.keys).subspan(first, count),
                   .c = scores + begin,
                   .c_stride = kRangeTokens});
  weigh(args, set, pages, partial, scores);
  for (int64_t r = 0; r < set.rows; ++r) {
    float* const row = scores + r * kRangeTokens;
    std::fill(row + begin, row + of.keys.from, 0.0f);
    std::fill(row + of.keys.to, row + end, 0.0f);
  }
  paired_->values({.a = scores + begin,
                   .a_stride = kRangeTokens,
                   .rows = set.rows,
                   .pages = std::span(pages.values).subspan(first, count),
                   .c = partial.values + set.query * partial.stride * dims_.head_dim,
                   .c_stride = partial.stride * dims_.head_dim});
}

// The sink is a key without a value. A range without keys adds zeros, which change no bit.
void Attention::join(const Args& args, const Block& block, int64_t kv_head) const {
  const int64_t dim = dims_.head_dim, ranges = block.ranges;
  const Partial all = partial(block, block.first_range, kv_head);
  const float unit = args.cache.format().unit;
  for (int64_t t = 0; t < block.tokens; ++t) {
    for (int64_t h = 0; h < group_; ++h) {
      const int64_t head = kv_head * group_ + h, at = query(block, t, h) * ranges;
      const bool sink = !args.sinks.empty();
      const float from = sink ? args.sinks[static_cast<size_t>(head)] : -std::numeric_limits<float>::infinity();
      const std::span<float> weights(all.tops + at, static_cast<size_t>(ranges));
      const float top = std::max(from, kernels_.scale_max(1.0f, weights));
      kernels_.exp_sum(top, weights);
      float sum = sink ? std::exp(from - top) : 0.0f;
      for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * all.sums[at + static_cast<int64_t>(i)];
      for (float& weight : weights) weight *= unit / sum;
      called_.add(kernels_.accumulate({.a = weights.data(),
                                       .a_stride = ranges,
                                       .rows = 1,
                                       .to = static_cast<int>(ranges),
                                       .b = all.values + at * dim,
                                       .b_stride = dim,
                                       .cols = dim,
                                       .b_is_bf16 = false,
                                       .c = args.out + (block.first_token + t) * dims_.q_width() + head * dim,
                                       .c_stride = dim,
                                       .from_zero = true}));
    }
  }
}

}  // namespace nibble::backend::cpu
