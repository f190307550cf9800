#include "backend/cpu/attention.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

namespace nibble::backend::cpu {
namespace {

constexpr int64_t kRangeTokens = int64_t{kRangePages} * kPageTokens;
constexpr int64_t kBlocksTogether = 8;  // of full size and 8 ranges each: room for partial sums

int64_t first_key(int64_t position, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

void prefetch(const KvPage& page, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const std::byte*>(page.codes) + i, 0, 2);
}

// What widened keys and values are divided by.
float unit_of(const KvCache& cache) { return cache.dtype() == KvDtype::kE4m3 ? kE4m3Unit : 1.0f; }

}  // namespace

Attention::Attention(const BackendConfig& config, const Kernels& kernels, ThreadPool& pool)
    : dims_(config.dims), kernels_(kernels), pool_(pool), group_(config.dims.heads / config.dims.kv_heads) {
  if (group_ > kMaxGroup) {
    throw Error(Code::kUnsupported, "[cpu] want at most {} query heads per kv head, found {} / {}", kMaxGroup,
                dims_.heads, dims_.kv_heads);
  }
  const int64_t pages = *std::max_element(config.kv_pages.begin(), config.kv_pages.end());
  const int64_t ranges = std::max<int64_t>(kBlocksTogether * kRangePages, pages / kRangePages + 2);
  partials_ = Buffer(ranges * dims_.kv_heads * partial_floats(kAttendTokens) * int64_t{sizeof(float)});
  widened_ = Buffer(int64_t{2} * pool.threads() * kPageTokens * dims_.head_dim * int64_t{sizeof(float)});
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
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (int64_t i = 0; i < blocks[b].ranges; ++i) items_.push_back({b, blocks[b].first_range + i});
  }
  // Neighbours read the same keys.
  std::sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) {
    return std::tuple(blocks[a.block].row, a.range, a.block) < std::tuple(blocks[b.block].row, b.range, b.block);
  });
  const auto count = static_cast<int64_t>(items_.size());
  pool_.parallel_chunks(count * dims_.kv_heads, 1, [&](IndexRange range) {
    const Item& item = items_[static_cast<size_t>(range.begin % count)];
    attend_range(args, blocks[item.block], range.begin / count, {item.range, item.range + 1, range.thread_idx});
  });
  pool_.parallel_for(static_cast<int64_t>(blocks.size()) * dims_.kv_heads, [&](IndexRange range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      join(args, blocks[static_cast<size_t>(i / dims_.kv_heads)], i % dims_.kv_heads);
    }
  });
}

Attention::Partial Attention::partial(const Block& block, int64_t range, int64_t kv_head) const {
  const int64_t queries = block.tokens * group_, i = kv_head * block.ranges + range - block.first_range;
  float* values = partials_.as<float>() + block.partial_at + i * partial_floats(block.tokens);
  float* tops = values + queries * dims_.head_dim;
  return {.values = values, .tops = tops, .sums = tops + queries};
}

void Attention::attend_range(const Args& args, const Block& block, int64_t kv_head, IndexRange range) const {
  const Partial sums = partial(block, range.begin, kv_head);
  const int64_t queries = block.tokens * group_;
  std::fill_n(sums.values, queries * dims_.head_dim, 0.0f);
  std::fill_n(sums.tops, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(sums.sums, queries, 0.0f);
  const int64_t begin = first_key(block.first_position, args.window), end = block.first_position + block.tokens;
  const int64_t first = std::max(range.begin * kRangePages, begin / kPageTokens);
  const int64_t last = std::min(range.end * kRangePages - 1, (end - 1) / kPageTokens);
  const int32_t* ids = args.pages.ids.data() + static_cast<int64_t>(block.row) * args.pages.pages_per_row;
  const KvDtype dtype = args.cache.dtype();
  const bool as_it_is = dtype == KvDtype::kF32 || (dtype == KvDtype::kBf16 && sets(block) == 1);
  float* const widened =
      as_it_is ? nullptr : widened_.as<float>() + 2 * range.thread_idx * kPageTokens * dims_.head_dim;
  for (int64_t idx = first; idx <= last; ++idx) {
    if (idx < last) {
      prefetch(args.cache.keys(ids[idx + 1], kv_head), args.cache.page_bytes());
      prefetch(args.cache.values(ids[idx + 1], kv_head), args.cache.page_bytes());
    }
    Page page{.idx = idx,
              .kv_head = kv_head,
              .from = static_cast<int>(std::max<int64_t>(begin - idx * kPageTokens, 0)),
              .to = static_cast<int>(std::min<int64_t>(end - idx * kPageTokens, kPageTokens)),
              .keys = nullptr,
              .values = nullptr,
              .is_bf16 = false};
    read(args.cache, ids[idx], widened, page);
    add_page(args, block, page, sums);
  }
}

void Attention::read(const KvCache& cache, int32_t id, float* widened, Page& page) const {
  const KvPage keys = cache.keys(id, page.kv_head), values = cache.values(id, page.kv_head);
  if (widened == nullptr) {
    page.keys = keys.codes;
    page.values = values.codes;
    page.is_bf16 = cache.dtype() == KvDtype::kBf16;
    return;
  }
  const auto widen = kernels_.widen[static_cast<size_t>(cache.dtype())];
  const int64_t dim = dims_.head_dim;
  float* const out = widened + kPageTokens * dim;
  widen({.page = keys,
         .cols = kPageTokens,
         .from = 0,
         .to = static_cast<int>(dim),
         .scale_per_row = false,
         .out = widened});
  widen({.page = values, .cols = dim, .from = page.from, .to = page.to, .scale_per_row = true, .out = out});
  page.keys = widened;
  page.values = out;
}

// A token's keys are a range of the page: the scores of the others become weights of zero.
void Attention::add_page(const Args& args, const Block& block, const Page& page, const Partial& partial) const {
  const int64_t dim = dims_.head_dim, width = dims_.q_width(), base = page.idx * kPageTokens;
  const bool heads_apart = by_head(block);
  const auto rows = static_cast<int>(heads_apart ? block.tokens : group_);
  const float factor = unit_of(args.cache) / std::sqrt(static_cast<float>(dim));
  const float* q = args.q + block.first_token * width + page.kv_head * group_ * dim;
  const auto from_of = [&](int64_t token) {
    return static_cast<int>(std::max<int64_t>(first_key(block.first_position + token, args.window) - base, 0));
  };
  const auto to_of = [&](int64_t token) {
    return static_cast<int>(std::min<int64_t>(block.first_position + token - base + 1, kPageTokens));
  };
  alignas(64) std::array<float, size_t{kMaxGroup} * kPageTokens> scores;
  for (int64_t set = 0; set < sets(block); ++set) {
    const int from = from_of(heads_apart ? 0 : set), to = to_of(heads_apart ? block.tokens - 1 : set);
    if (from >= to) continue;
    std::fill_n(scores.begin(), rows * kPageTokens, 0.0f);
    kernels_.accumulate({.a = q + set * (heads_apart ? dim : width),
                         .a_stride = heads_apart ? width : dim,
                         .rows = rows,
                         .from = 0,
                         .to = static_cast<int>(dim),
                         .b = page.keys,
                         .b_width = kPageTokens,
                         .b_is_bf16 = page.is_bf16,
                         .c = scores.data(),
                         .c_stride = kPageTokens});
    for (int r = 0; r < rows; ++r) {
      float* const row = scores.data() + r * kPageTokens;
      const int64_t token = heads_apart ? r : set;
      const int own_from = std::min(from_of(token), to), own_to = std::max(to_of(token), own_from);
      std::fill(row + from, row + own_from, 0.0f);
      std::fill(row + own_to, row + to, 0.0f);
      if (own_from < own_to) weigh(factor, {row + own_from, row + own_to}, partial, set * rows + r);
    }
    kernels_.accumulate({.a = scores.data(),
                         .a_stride = kPageTokens,
                         .rows = rows,
                         .from = from,
                         .to = to,
                         .b = page.values,
                         .b_width = dim,
                         .b_is_bf16 = page.is_bf16,
                         .c = partial.values + set * rows * dim,
                         .c_stride = dim});
  }
}

// The scores of a query become the weights of its values; what came before is scaled to the new top.
void Attention::weigh(float factor, std::span<float> scores, const Partial& partial, int64_t query) const {
  const int64_t dim = dims_.head_dim;
  const float top = kernels_.scale_max(factor, scores);
  float& old = partial.tops[query];
  if (top > old) {
    const float shrink = std::exp(old - top);
    partial.sums[query] *= shrink;
    for (int64_t d = 0; d < dim; ++d) partial.values[query * dim + d] *= shrink;
    old = top;
  }
  partial.sums[query] += kernels_.exp_sum(old, scores);
}

// The sink is a key without a value. A range without keys adds nothing, not even a rounding.
void Attention::join(const Args& args, const Block& block, int64_t kv_head) const {
  const int64_t dim = dims_.head_dim;
  const float unit = unit_of(args.cache);
  for (int64_t t = 0; t < block.tokens; ++t) {
    for (int64_t h = 0; h < group_; ++h) {
      const int64_t head = kv_head * group_ + h, at = query(block, t, h);
      const auto each = [&](const auto& body) {
        for (int64_t i = 0; i < block.ranges; ++i) {
          const Partial range = partial(block, block.first_range + i, kv_head);
          if (range.sums[at] != 0) body(range);
        }
      };
      const bool sink = !args.sinks.empty();
      const float from = sink ? args.sinks[static_cast<size_t>(head)] : -std::numeric_limits<float>::infinity();
      float top = from;
      each([&](const Partial& range) { top = std::max(top, range.tops[at]); });
      float sum = sink ? std::exp(from - top) : 0.0f;
      each([&](const Partial& range) {
        float& factor = range.tops[at];  // a top no more
        factor = std::exp(factor - top);
        sum += range.sums[at] * factor;
      });
      float* const out = args.out + (block.first_token + t) * dims_.q_width() + head * dim;
      std::fill_n(out, dim, 0.0f);
      each([&](const Partial& range) {
        const float weight = range.tops[at] / sum * unit;
        kernels_.accumulate({.a = &weight,
                             .a_stride = 1,
                             .rows = 1,
                             .from = 0,
                             .to = 1,
                             .b = range.values + at * dim,
                             .b_width = dim,
                             .b_is_bf16 = false,
                             .c = out,
                             .c_stride = dim});
      });
    }
  }
}

}  // namespace nibble::backend::cpu
