// The shards of any number of ranks make up every tensor exactly.

#include "backend/testing/dims.h"
#include "backend/shards.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nibble::backend {
namespace {

using enum WeightRole;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Dims dims_with(int64_t heads, int64_t kv_heads, int64_t inter, int64_t experts, int64_t vocab) {
  Dims d = kDims120b;
  d.hidden = 2;
  d.heads = heads;
  d.kv_heads = kv_heads;
  d.head_dim = 6;
  d.inter = inter;
  d.experts = experts;
  d.vocab = vocab;
  return d;
}

std::vector<Dims> shapes() {
  return {dims_with(64, 8, 2880, 9, 333), dims_with(8, 2, 192, 8, 4096), dims_with(6, 3, 32, 5, 7),
          dims_with(12, 3, 416, 7, 1),    dims_with(5, 5, 64, 1, 1000),  dims_with(16, 16, 96, 3, 17)};
}

std::vector<Ranks> ranks_for(const Dims& d) {
  std::vector<Ranks> all;
  for (int n = 1; n <= 64; ++n) {
    if (d.heads % n != 0 || (d.kv_heads % n != 0 && n % d.kv_heads != 0)) continue;
    for (const bool whole : {false, true}) all.push_back({n, whole});
  }
  return all;
}

// How many ranks hold each value of a tensor.
std::vector<int> holders(WeightRole role, const Dims& d, const Ranks& ranks) {
  const Slice whole = whole_of(role, d);
  std::vector<int> count(static_cast<size_t>(whole.values()));
  for (int rank = 0; rank < ranks.count; ++rank) {
    const Slice s = slice_of(role, d, shard_of(d, ranks, rank));
    if (s.zeros) continue;
    EXPECT_TRUE(s.experts.end() <= whole.experts.count && s.rows.end() <= whole.rows.count &&
                s.cols.end() <= whole.cols.count);
    for (int64_t e = s.experts.first; e < s.experts.end(); ++e)
      for (int64_t r = s.rows.first; r < s.rows.end(); ++r)
        for (int64_t c = s.cols.first; c < s.cols.end(); ++c)
          ++count[static_cast<size_t>((e * whole.rows.count + r) * whole.cols.count + c)];
  }
  return count;
}

TEST(Shards, make_up_every_tensor_exactly) {
  for (const Dims& d : shapes()) {
    for (const Ranks& ranks : ranks_for(d)) {
      SCOPED_TRACE(testing::Message() << d.heads << " heads, " << d.kv_heads << " KV heads, " << ranks.count
                                      << " ranks, whole experts " << ranks.whole_experts);
      for (const WeightRole role :
           {kQ, kQBias, kO, kOBias, kSinks, kGateUp, kGateUpBias, kDown, kDownBias, kUnembedding})
        EXPECT_THAT(holders(role, d, ranks), Each(1)) << name_of(role);
      const int sharing = std::max(1, ranks.count / static_cast<int>(d.kv_heads));
      for (const WeightRole role : {kK, kKBias, kV, kVBias})
        EXPECT_THAT(holders(role, d, ranks), Each(sharing)) << name_of(role);
      for (const WeightRole role : {kEmbedding, kFinalNorm, kAttnNorm, kMlpNorm, kRouter, kRouterBias})
        EXPECT_THAT(holders(role, d, ranks), Each(ranks.count)) << name_of(role);
    }
  }
}

TEST(Shards, a_rank_has_the_kv_head_of_each_of_its_heads) {
  for (const Dims& d : shapes()) {
    for (const Ranks& ranks : ranks_for(d)) {
      for (int rank = 0; rank < ranks.count; ++rank) {
        const Shard shard = shard_of(d, ranks, rank);
        const int64_t group = d.heads / d.kv_heads, own_group = shard.heads.count / shard.kv_heads.count;
        for (int64_t h = 0; h < shard.heads.count; ++h)
          EXPECT_EQ((shard.heads.first + h) / group, shard.kv_heads.first + h / own_group)
              << ranks.count << " ranks, rank " << rank << ", head " << h;
      }
    }
  }
}

TEST(Shards, widths_of_experts_are_the_field_s) {
  const auto widths = [](int n) {
    std::vector<int64_t> all;
    for (int rank = 0; rank < n; ++rank) all.push_back(shard_of(kDims120b, {.count = n}, rank).inter.count);
    return all;
  };
  EXPECT_THAT(widths(2), ElementsAre(1440, 1440));
  EXPECT_THAT(widths(4), ElementsAre(736, 736, 736, 672));
  EXPECT_THAT(widths(8), ElementsAre(384, 384, 384, 384, 384, 384, 384, 192));
}

TEST(Shards, whole_experts_may_be_uneven) {
  Dims d = kDims120b;
  d.experts = 10;
  std::vector<int64_t> counts;
  for (int rank = 0; rank < 4; ++rank) counts.push_back(shard_of(d, {4, true}, rank).experts.count);
  EXPECT_THAT(counts, ElementsAre(2, 3, 2, 3));
  EXPECT_EQ(shard_of(d, {4, true}, 1).inter.count, d.inter);
}

TEST(Shards, a_rank_computes_with_its_own_widths) {
  const Dims d = dims_of(kDims120b, shard_of(kDims120b, {.count = 16}, 15));
  EXPECT_EQ(d.heads, 4);
  EXPECT_EQ(d.kv_heads, 1);
  EXPECT_EQ(d.inter, 0);  // 15 ranks of 6 blocks have all 90
  EXPECT_EQ(d.vocab, 12568);
  EXPECT_EQ(d.experts, 128);
  EXPECT_EQ(d.hidden, 2880);
}

TEST(Shards, ranks_that_cannot_share_the_heads_are_refused) {
  for (const int n : {0, 3, 24, 128}) {
    try {
      validate({.count = n}, kDims120b);
      ADD_FAILURE() << n << " was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("found {}", n)));
      EXPECT_THAT(error.what(), HasSubstr("64 query heads"));
    }
  }
  validate({.count = 64}, kDims120b);
}

}  // namespace
}  // namespace nibble::backend
