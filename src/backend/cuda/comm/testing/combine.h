#pragma once
// What the emulated tests of sums share that combine on the way: parts of several ranks, each in some form, and what
// any_combine and a sum in the order of the ranks make of them.

#include "backend/cuda/emulation/device.h"

#include "backend/cuda/dense/gemm_plan.h"
#include "backend/cuda/norm_rope/combine.cuh"
#include "base/dtype.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace nibble::backend::cuda {

struct CombineCase {
  SplitSums::Order order = SplitSums::Order::kTiles;
  int tokens = 1, hidden = 192;
  int splits = 3, topk = 4;
  bool whole_experts = false;  // of 8, dealt to the ranks
};

// any_combine's launch.
[[nodiscard]] inline emulation::Launch combine_launch(const Combine::Args& args) {
  return {.grid = (args.tokens + 7) / 8,
          .threads = kCombineThreads,
          .grid_y = combine_parts(args.hidden),
          .predecessor = {}};
}
inline void combine(const Combine::Args& args) {
  using enum SplitSums::Order;
  if (args.sums.order == kExpertsF32) return any_combine_f32<kExpertsF32>(args);
  if (args.sums.order == kExpertsBf16) return any_combine_f32<kExpertsBf16>(args);
  any_combine_f32<kTiles>(args);
}

class PartsOfRanks {
 public:
  PartsOfRanks(const CombineCase& c, int ranks, uint64_t seed) : c_(c), ranks_(static_cast<size_t>(ranks)) {
    const auto tiles = static_cast<size_t>(split_pitch(c.tokens, c.hidden));
    const auto pairs = static_cast<size_t>(c.tokens * c.topk);
    for (size_t i = 0; i < pairs; ++i) {
      ids_.push_back(static_cast<int32_t>(i * 5 % 8));
      weights_.push_back(uniform_float(philox(seed, i)[0]));
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      const auto value = [&](size_t i) { return uniform_float(philox(seed + 1 + r, i)[0]) - 0.5f; };
      for (size_t i = 0; i < tiles * static_cast<size_t>(c.splits); ++i)
        rank.sums.push_back(Bf16::from_float(value(i)).bits);
      for (int i = 0; i < c.hidden; ++i)
        rank.bias.push_back(Bf16::from_float(r == 0 ? value(static_cast<size_t>(i)) : 0.0f));
      if (c.whole_experts) rank.own = {8 * static_cast<int>(r) / ranks, 8 / ranks};
      for (size_t i = 0; i < pairs * static_cast<size_t>(c.hidden); ++i) {
        const bool own = rank.own.number_of(ids_[i / static_cast<size_t>(c.hidden)]) >= 0;
        rank.f32.push_back(own ? value(i) : std::nanf(""));  // nobody may read what nobody wrote
        rank.bf16.push_back(own ? Bf16::from_float(value(i)) : Bf16{0x7fff});
      }
      rank.tiles.resize(tiles / 8);
      rank.alone.resize(tiles / 8);
    }
  }

  [[nodiscard]] Combine::Args args(int rank) { return args_to(rank, ranks_[static_cast<size_t>(rank)].tiles); }
  [[nodiscard]] int64_t words() const { return split_pitch(c_.tokens, c_.hidden) / 2; }

  // The sum of all ranks, bit for bit, which is the same on each.
  void expect_sums() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Combine::Args args = args_to(static_cast<int>(r), ranks_[r].alone);
      ASSERT_EQ(emulation::run(combine_launch(args), [&] { combine(args); }), "");
    }
    for (int t = 0; t < c_.tokens; ++t)
      for (int d = 0; d < c_.hidden; ++d) {
        float sum = 0;
        for (const Rank& rank : ranks_) sum += Bf16{at(rank.alone, t, d)}.to_float();
        for (size_t r = 0; r < ranks_.size(); ++r)
          ASSERT_EQ(at(ranks_[r].tiles, t, d), Bf16::from_float(sum).bits)
              << "rank " << r << ", token " << t << ", dim " << d;
      }
  }

 private:
  struct alignas(16) Vector {
    uint16_t values[8] = {0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff, 0x7fff};
  };
  struct Rank {
    std::vector<uint16_t> sums;
    std::vector<float> f32;
    std::vector<Bf16> bf16, bias;
    OwnExperts own;
    std::vector<Vector> tiles, alone;  // with the others' parts, and without
  };

  [[nodiscard]] Combine::Args args_to(int rank, std::vector<Vector>& tiles) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    Combine::Args args{.own = own.own, .tiles = tiles.front().values, .tokens = c_.tokens, .hidden = c_.hidden};
    if (c_.order == SplitSums::Order::kTiles) {
      args.sums = {own.sums.data(), c_.splits, c_.order};
      args.bias = own.bias.data();
      return args;
    }
    const bool f32 = c_.order == SplitSums::Order::kExpertsF32;
    args.sums = {f32 ? static_cast<const void*>(own.f32.data()) : own.bf16.data(), c_.topk, c_.order, weights_.data()};
    args.ids = ids_.data();
    return args;
  }
  [[nodiscard]] uint16_t at(const std::vector<Vector>& tiles, int token, int dim) const {
    const auto place = static_cast<size_t>(place_in_sums(c_.tokens, token, dim));
    return tiles[place / 8].values[place % 8];
  }

  CombineCase c_;
  std::vector<Rank> ranks_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

// Cases of every form, with tokens that fill no tile, more experts than are read together, and experts of another rank.
[[nodiscard]] inline std::vector<CombineCase> combine_cases() {
  return {{.tokens = 11, .splits = 5},
          {.tokens = 8, .hidden = 160, .splits = 1},
          {.order = SplitSums::Order::kExpertsF32, .tokens = 9},
          {.order = SplitSums::Order::kExpertsF32, .tokens = 3, .hidden = 64, .topk = 6, .whole_experts = true},
          {.order = SplitSums::Order::kExpertsBf16, .tokens = 20},
          {.order = SplitSums::Order::kExpertsBf16, .tokens = 10, .topk = 3, .whole_experts = true}};
}

}  // namespace nibble::backend::cuda
