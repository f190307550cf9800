#pragma once
// Rows of weights times tokens: the one loop that every matrix of the model runs through.

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/weights.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cpu {

// An uploaded matrix: [rows, cols] of one format; experts are stacked along the rows. The bytes are the caller's,
// unless requantised.
class Matrix {
 public:
  explicit Matrix(const HostWeight& weight);
  [[nodiscard]] WeightFormat format() const { return format_; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  [[nodiscard]] int64_t cols() const { return cols_; }
  [[nodiscard]] WeightRows at(int64_t first_row, int64_t count) const {
    return {.format = format_,
            .values = values_ + first_row * row_bytes(format_, cols_),
            .scales = scales_ == nullptr ? nullptr : scales_ + first_row * (cols_ / kMxBlock),
            .cols = cols_,
            .rows = static_cast<int>(count)};
  }
  // Holds the rows in `as` from now on, kMxfp4 or kMxfp8, by scale_rule().
  void requantise(WeightFormat as, const Kernels& kernels, ThreadPool& pool);

 private:
  WeightFormat format_;
  int64_t rows_, cols_;
  const uint8_t* values_;
  const uint8_t* scales_;
  Buffer own_values_, own_scales_;
};

// Inputs one after the other.
template <class T>
struct Vectors {
  T* data;
  int64_t count, cols;
  [[nodiscard]] std::span<T> operator[](int64_t idx) const { return {data + idx * cols, static_cast<size_t>(cols)}; }
};

// Some rows of a matrix and the tokens that they multiply.
struct Group {
  const Matrix* weight = nullptr;
  int64_t first_row = 0;
  std::span<const int32_t> tokens;  // indices into the inputs
  // A second matrix of the same format that is multiplied alongside, or none.
  const Matrix* pair = nullptr;
  // What `each` adds to the products, one per row of the group, fetched while they are computed: a miss afterwards
  // would leave memory idle. Null: nothing.
  const float* bias = nullptr;
  const float* pair_bias = nullptr;

  // Where a row of the group begins.
  [[nodiscard]] const uint8_t* values(int64_t row) const { return weight->at(first_row + row, 1).values; }
};

// What one thread has computed: out[t][r] = weight[group.first_row + row + r] · x[group.tokens[from + t]]. Tokens'
// results lie far apart in memory: who stores one prefetches its neighbour, where the next tile's goes.
struct Tile {
  int group;
  int64_t row;
  int rows;
  int64_t from;
  int tokens;
  const float* out;   // [tokens, kTileRows]
  const float* pair;  // the same of the group's pair
};

// Multiplies groups of tokens by their weights. One caller at a time.
class Linear {
 public:
  struct Limits {
    int64_t cols;    // most columns of a matrix
    int64_t inputs;  // most input rows
    int64_t groups;  // most groups
  };
  // activations: the experts', which run() takes.
  Linear(const Kernels& kernels, Activations activations, ThreadPool& pool, const Limits& limits);

  // From now on tokens are multiplied so that each has the bits that it gets alone, or as is fastest.
  void as_alone(bool on) { as_alone_ = on; }

  // The instruction sets whose functions have multiplied so far.
  [[nodiscard]] const CalledSets& called() const { return called_; }

  // Inputs, in place: rounded where the activations are in MX blocks; else left alone. Without them: the experts'.
  void round_inputs(Vectors<float> x, Activations activations);
  void round_inputs(Vectors<float> x) { round_inputs(x, activations_); }

  // Both call each(tile) on the pool's threads for all rows. The groups share x, the format and the columns; which
  // thread computes what changes no bit.
  // `rows` rows of every group: who has a row has it in all groups, and sees the groups in their order.
  template <class Each>
  void run(Vectors<const float> x, std::span<const Group> groups, int64_t rows, const Each& each) {
    prepare(x, groups, activations_);
    pool_.parallel_ranges(rows, kTileRows, [&](IndexRange range) {
      for (size_t g = 0; g < groups.size(); ++g) {
        const bool last = g + 1 == groups.size();
        multiply_range({groups, g, last ? nullptr : groups[g + 1].values(range.begin)}, range, each);
      }
    });
  }
  // All rows of the groups' matrices, in any order. kInt8, which wants the same of the constructor: x in int8; else as
  // floats.
  template <class Each>
  void run_whole(Vectors<const float> x, std::span<const Group> groups, Activations activations, const Each& each) {
    prepare(x, groups, activations);
    int64_t rows = 0;
    for (const Group& group : groups) rows += group.weight->rows();
    // A small matrix, the router's, still has a piece for every thread.
    const int64_t chunk = rows > int64_t{kTileRows} * pool_.threads() ? kTileRows : kTileRows / 4;
    pool_.parallel_ranges(rows, chunk, [&](IndexRange range) {
      for (size_t g = 0; g < groups.size(); ++g) {
        const int64_t here = groups[g].weight->rows();
        const IndexRange part{std::max<int64_t>(range.begin, 0), std::min(range.end, here), range.thread_idx};
        multiply_range({groups, g, nullptr}, part, each);
        range.begin -= here;
        range.end -= here;
      }
    });
  }
  // These rows of one group's matrix, in rising order, with the bits that run_whole gives them.
  template <class Each>
  void run_listed(Vectors<const float> x, const Group& group, std::span<const int32_t> rows, Activations activations,
                  const Each& each) {
    prepare(x, {&group, 1}, activations);
    pool_.parallel_ranges(std::ssize(rows), 1, [&](IndexRange range) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const auto at = static_cast<size_t>(i);
        Tile tile{.group = 0,
                  .row = rows[at],
                  .rows = 1,
                  .from = 0,
                  .tokens = static_cast<int>(group.tokens.size()),
                  .out = nullptr,
                  .pair = nullptr};
        multiply(group, tile, i + 1 < range.end ? group.values(rows[at + 1]) : nullptr, range.thread_idx);
        each(tile);
      }
    });
  }

 private:
  enum class Form : uint8_t { kFloat, kInt8 };
  // One of the groups, and where the weights begin that are read after its range; null: nowhere known.
  struct Turn {
    std::span<const Group> groups;
    size_t group_idx;
    const uint8_t* next;
  };
  struct Share {
    const Matrix& weight;
    const Group& group;
    const Tile& tile;
    const uint8_t* next;
    int thread_idx;
  };

  template <class Each>
  void multiply_range(const Turn& turn, IndexRange range, const Each& each) {
    const Group& group = turn.groups[turn.group_idx];
    const auto count = static_cast<int64_t>(group.tokens.size());
    for (int64_t from = 0; from < count; from += kTileTokens) {
      for (int64_t row = range.begin; row < range.end; row += kTileRows) {
        Tile tile{.group = static_cast<int>(turn.group_idx),
                  .row = row,
                  .rows = static_cast<int>(std::min<int64_t>(kTileRows, range.end - row)),
                  .from = from,
                  .tokens = static_cast<int>(std::min<int64_t>(kTileTokens, count - from)),
                  .out = nullptr,
                  .pair = nullptr};
        const bool last = row + kTileRows >= range.end;
        multiply(group, tile, last ? turn.next : group.values(row + kTileRows), range.thread_idx);
        each(tile);
      }
    }
  }
  void prepare(Vectors<const float> x, std::span<const Group> groups, Activations activations);
  void prepare_int8(Vectors<const float> x, std::span<const Group> groups);
  void multiply(const Group& group, Tile& tile, const uint8_t* next, int thread_idx);
  void multiply_rows(const Share& share, float* out);
  [[nodiscard]] const TokenTiles* tiles_of(const Group& group) const;  // null: rows

  const Kernels& kernels_;
  const Activations activations_;
  ThreadPool& pool_;
  const Limits limits_;
  Form form_ = Form::kFloat;
  bool as_alone_ = false;                 // products of floats always are
  std::vector<const float*> float_rows_;  // [inputs]
  std::vector<const std::byte*> int8_rows_;
  int64_t tile_bytes_ = 0;               // most of a tile
  std::vector<const std::byte*> tiles_;  // of all tiled groups
  std::vector<int64_t> first_tile_;      // [groups]
  struct TileSource {
    int group;
    int64_t from;
  };
  std::vector<TileSource> tile_sources_;
  Buffer arranged_, prepared_;
  Buffer outs_, scratch_;  // per thread
  CalledSets called_;
};

}  // namespace nibble::backend::cpu
