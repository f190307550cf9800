#pragma once
// Attention: blocks of tokens of a row times ranges of keys, a softmax over each range, then each token's ranges put
// together. Ranges begin at fixed positions, so a token's bits depend neither on the tokens that it shares a block with
// nor on which thread had which range. Pages become floats once for all queries of a block, but bf16 for one or
// two products.

#include "backend/args.h"
#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_cache.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cpu {

inline constexpr int kMaxGroup = 64;      // query heads per kv head
inline constexpr int kAttendTokens = 32;  // tokens that share one pass over the keys
inline constexpr int kRangePages = 8;     // pages of a range of keys: some µs of one thread's work
static_assert(kRangePages <= kPairedPages);

class Attention {
 public:
  // With int8 activations, prompts multiply pages of bf16 in bf16 where the kernels can.
  Attention(const BackendConfig& config, const Kernels& kernels, Activations activations, ThreadPool& pool);

  struct Args {
    const KvCache& cache;
    std::span<const Row> rows;
    const PageTable& pages;
    int64_t window;                // keys that a token sees, its own included; 0: all
    std::span<const float> sinks;  // [heads]; empty: none
    const float* q;                // [tokens, heads, head_dim]
    float* out;                    // [tokens, heads, head_dim]
    bool as_alone = false;         // each token has the bits that it gets alone
    bool fp8 = false;              // q is rounded, and weights are (backend/kv_dtype.h)
  };
  void run(const Args& args);
  [[nodiscard]] const CalledSets& called() const { return called_; }  // so far

 private:
  // Tokens of a row, the ranges that they see, and where the block's partial sums begin.
  struct Block {
    size_t row;
    int64_t first_token, first_position;
    int tokens;
    int64_t first_range, ranges;
    int64_t partial_at;
  };
  struct Item {
    size_t block;
    int64_t range;
  };
  // The sums of one kv head's queries of a block in one range; `stride` ranges of a query lie side by side.
  struct Partial {
    float* values;  // [queries, stride, head_dim]: sums of exp(score - top) times the values
    float* tops;    // [queries, stride]: the largest score; -infinity where no key was seen
    float* sums;    // [queries, stride]: of exp(score - top)
    int64_t stride;
  };

  // A kv head's pages of a range, in floats or bf16.
  struct Pages {
    int64_t first_key;                            // position
    int from, to;                                 // keys that a query of the block sees, counted from first_key
    std::array<const void*, kRangePages> keys;    // [head_dim, kPageTokens]
    std::array<const void*, kRangePages> values;  // [kPageTokens, head_dim]
    bool is_bf16;
    bool paired;                           // in pairs of rows instead
    bool unread;                           // no product has brought them to a cache
    std::array<const void*, 2> following;  // the keys of the first pages of the next range; null: there is none
  };
  // Queries that multiply pages together: the heads of a token or, where those are fewer, the tokens of a head.
  struct Set {
    const float* q;
    int64_t q_stride;
    int rows;
    int64_t first_position, step;  // of row r: first_position + r * step
    int64_t query;                 // the first of its places in a Partial
  };

  void add_blocks(const Args& args);
  void attend(std::span<const Block> blocks, const Args& args);
  void attend_range(const Args& args, const Block& block, int64_t kv_head, IndexRange range) const;
  // Where several products read the pages, or none could as they are, to floats.
  [[nodiscard]] Pages read(const Args& args, const Block& block, int64_t kv_head, IndexRange range) const;
  struct Keys {
    int from, to;  // counted from pages.first_key
  };
  [[nodiscard]] static Keys seen_from(int64_t position, int64_t window, const Pages& pages);
  void attend_set(const Args& args, const Set& set, const Pages& pages, const Partial& partial, float* scores) const;
  struct PairedSet {
    const Set& set;
    int first_page, pages;
    Keys keys;
  };
  void attend_paired(const Args& args, const PairedSet& of, const Pages& pages, const Partial& partial,
                     float* scores) const;
  // Rounds a range's weights for fp8 and divides them by 2^kWeightBits. Returns their sum.
  [[nodiscard]] static float round_weights(std::span<float> weights);
  // scores [set.rows, kRangeTokens] become weights, those of keys that a row does not see zero.
  void weigh(const Args& args, const Set& set, const Pages& pages, const Partial& partial, float* scores) const;
  void join(const Args& args, const Block& block, int64_t kv_head) const;
  [[nodiscard]] Partial partial(const Block& block, int64_t range, int64_t kv_head) const;
  [[nodiscard]] int64_t partial_floats(int tokens) const { return tokens * group_ * (dims_.head_dim + 2); }
  [[nodiscard]] bool by_head(const Block& block) const { return block.tokens > group_; }
  [[nodiscard]] int64_t query(const Block& block, int64_t token, int64_t head) const {
    return by_head(block) ? head * block.tokens + token : token * group_ + head;
  }

  const Dims& dims_;
  const Kernels& kernels_;
  const PairedProducts* const paired_;  // null: none
  ThreadPool& pool_;
  const int64_t group_;  // query heads per kv head
  Buffer partials_;
  Buffer widened_;  // of each thread: a range's keys and values
  Buffer scores_;   // of each thread: a set's, [queries, kRangeTokens]
  std::vector<Block> blocks_;
  std::vector<Item> items_;
  mutable CalledSets called_;
};

}  // namespace nibble::backend::cpu
