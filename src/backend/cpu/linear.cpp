#include "backend/cpu/linear.h"

#include "base/error.h"
#include "base/mx.h"

#include <array>
#include <functional>
#include <numeric>

namespace nibble::backend::cpu {
namespace {

// The lines of x[0, count).
void prefetch_floats(const float* x, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t i = 0; i < count + kLine - 1; i += kLine) __builtin_prefetch(x + std::min(i, count - 1));
}

}  // namespace

Matrix::Matrix(const HostWeight& weight)
    : format_(weight.format),
      values_(reinterpret_cast<const uint8_t*>(weight.values.bytes.data())),
      scales_(reinterpret_cast<const uint8_t*>(weight.scales.bytes.data())) {
  const Shape& shape = weight.values.shape;  // [.., cols], or [.., blocks, bytes of a block]
  const size_t tail = in_blocks(format_) ? 2 : 1;
  check(shape.size() > tail, "a matrix has rows");
  cols_ = in_blocks(format_) ? shape[shape.size() - 2] * kMxBlock : shape.back();
  rows_ = std::accumulate(shape.begin(), shape.end() - static_cast<int64_t>(tail), int64_t{1}, std::multiplies<>());
  if (!has_scale_array(format_)) scales_ = nullptr;
}

void Matrix::requantise(WeightFormat as, const Kernels& kernels, ThreadPool& pool) {
  const MxFormat format = as == WeightFormat::kMxfp4 ? MxFormat::kMxfp4 : MxFormat::kMxfp8E4m3;
  const auto value_bytes = static_cast<size_t>(row_bytes(as, cols_)), blocks = static_cast<size_t>(cols_ / kMxBlock);
  Buffer values(rows_ * static_cast<int64_t>(value_bytes)), scales(rows_ * static_cast<int64_t>(blocks));
  pool.parallel_for(rows_, [&](IndexRange range) {
    std::vector<float> row(static_cast<size_t>(cols_));
    for (int64_t r = range.begin; r < range.end; ++r) {
      kernels.decode(at(r, 1), row.data());
      const auto i = static_cast<size_t>(r);
      mx_quantize(row, scale_rule(as),
                  {format, std::span(values.as<uint8_t>() + i * value_bytes, value_bytes),
                   std::span(scales.as<uint8_t>() + i * blocks, blocks)});
    }
  });
  own_values_ = std::move(values);
  own_scales_ = std::move(scales);
  format_ = as;
  values_ = own_values_.as<uint8_t>();
  scales_ = own_scales_.as<uint8_t>();
}

Linear::Linear(const Kernels& kernels, Activations activations, ThreadPool& pool, const Limits& limits)
    : kernels_(kernels), activations_(activations), pool_(pool), limits_(limits) {
  const auto inputs = static_cast<size_t>(limits.inputs);
  float_rows_.resize(inputs);
  arranged_ = Buffer(limits.inputs * limits.cols * int64_t{sizeof(float)});
  if (activations == Activations::kInt8) {
    const int64_t tiles = limits.inputs / kLaneTokens + limits.groups;
    for (const TokenTiles* each : kernels.int8->tiles)
      if (each != nullptr) tile_bytes_ = std::max(tile_bytes_, each->size(limits.cols));
    int8_rows_.resize(inputs);
    tiles_.resize(static_cast<size_t>(tiles));
    tile_sources_.resize(static_cast<size_t>(tiles));
    first_tile_.resize(static_cast<size_t>(limits.groups));
    prepared_ = Buffer(limits.inputs * kernels.int8->row_size(limits.cols) + tiles * tile_bytes_);
  }
  outs_ = Buffer(int64_t{pool.threads()} * 2 * kTileTokens * kTileRows * int64_t{sizeof(float)});
  scratch_ = Buffer(pool.threads() * scratch_floats(limits.cols) * int64_t{sizeof(float)});
}

void Linear::round_inputs(Vectors<float> x, Activations activations) {
  if (!in_mx_blocks(activations)) return;
  pool_.parallel_each(x.count, [&](int64_t i) { round_activations(activations, x[i]); });
}

void Linear::prepare(Vectors<const float> x, std::span<const Group> groups, Activations activations) {
  const int64_t count = x.count, cols = x.cols;
  check(count <= limits_.inputs && cols <= limits_.cols && static_cast<int64_t>(groups.size()) <= limits_.groups,
        "linear's limits cover its inputs");
  if (groups.empty()) return;
  const WeightFormat format = groups[0].weight->format();
  for (const Group& group : groups)
    check(group.weight->cols() == cols && group.weight->format() == format &&
              (group.pair == nullptr || group.pair->format() == format),
          "groups share inputs and a format");
  check(activations != Activations::kInt8 || activations_ == Activations::kInt8, "linear was made for int8");
  form_ = activations == Activations::kInt8 && int8_serves(format) ? Form::kInt8 : Form::kFloat;
  if (form_ == Form::kInt8) return prepare_int8(x, groups);
  const bool arrange = kernels_.arranges(format);
  for (int64_t i = 0; i < count; ++i)
    float_rows_[static_cast<size_t>(i)] = arrange ? arranged_.as<float>() + i * cols : x[i].data();
  if (!arrange) return;
  pool_.parallel_each(count, [&](int64_t i) { kernels_.arrange(format, x[i], arranged_.as<float>() + i * cols); });
}

const TokenTiles* Linear::tiles_of(const Group& group) const {
  if (as_alone_) return nullptr;
  return kernels_.int8->tiles_for(group.weight->format(), static_cast<int64_t>(group.tokens.size()));
}

void Linear::prepare_int8(Vectors<const float> x, std::span<const Group> groups) {
  const int64_t count = x.count, cols = x.cols;
  const int64_t row_size = kernels_.int8->row_size(cols);
  std::byte* const rows = prepared_.as<std::byte>();
  std::byte* const tiles = rows + count * row_size;
  int64_t most_in_rows = 0;  // tokens of a group that no tiles serve
  int64_t tile_count = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    first_tile_[g] = tile_count;
    if (tiles_of(groups[g]) == nullptr) {
      most_in_rows = std::max(most_in_rows, static_cast<int64_t>(groups[g].tokens.size()));
      continue;
    }
    if (g > 0 && groups[g].tokens.data() == groups[g - 1].tokens.data() &&
        groups[g].tokens.size() == groups[g - 1].tokens.size()) {
      first_tile_[g] = first_tile_[g - 1];
      continue;
    }
    for (int64_t from = 0; from < static_cast<int64_t>(groups[g].tokens.size()); from += kLaneTokens, ++tile_count) {
      tiles_[static_cast<size_t>(tile_count)] = tiles + tile_count * tile_bytes_;
      tile_sources_[static_cast<size_t>(tile_count)] = {static_cast<int>(g), from};
    }
  }
  const WeightFormat format = groups[0].weight->format();
  if (as_alone_) most_in_rows = std::min<int64_t>(most_in_rows, kernels_.int8->alike_tokens);
  for (int64_t i = 0; most_in_rows > 0 && i < count; ++i) int8_rows_[static_cast<size_t>(i)] = rows + i * row_size;
  pool_.parallel_each(most_in_rows > 0 ? count : 0,
                      [&](int64_t i) { kernels_.int8->prepare_row(format, x[i], most_in_rows, rows + i * row_size); });
  const int64_t blocks = cols / kMxBlock;
  pool_.parallel_for(tile_count * blocks, [&](IndexRange range) {
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t i = at / blocks, first = at % blocks, last = std::min(blocks, first + range.end - at);
      const TileSource& source = tile_sources_[static_cast<size_t>(i)];
      const Group& group = groups[static_cast<size_t>(source.group)];
      const auto tokens = group.tokens.subspan(static_cast<size_t>(source.from));
      std::array<const float*, kLaneTokens> sources{};
      const size_t used = std::min<size_t>(tokens.size(), kLaneTokens);
      for (size_t t = 0; t < used; ++t) sources[t] = x[tokens[t]].data();
      tiles_of(group)->prepare({.format = format,
                                .x = std::span(sources).first(used),
                                .cols = cols,
                                .first = first,
                                .last = last,
                                .out = tiles + i * tile_bytes_});
      at += last - first;
    }
  });
}

void Linear::multiply(const Group& group, Tile& tile, const uint8_t* next, int thread_idx) {
  float* const out = outs_.as<float>() + int64_t{thread_idx} * 2 * kTileTokens * kTileRows;
  float* const pair = out + kTileTokens * kTileRows;
  const bool alone = group.pair == nullptr;
  const int64_t first_row = group.first_row + tile.row;
  for (const float* bias : {group.bias, group.pair_bias})
    if (bias != nullptr) prefetch_floats(bias + tile.row, tile.rows);
  multiply_rows({*group.weight, group, tile, alone ? next : group.pair->at(first_row, 1).values, thread_idx}, out);
  tile.out = out;
  if (alone) return;
  multiply_rows({*group.pair, group, tile, next, thread_idx}, pair);
  tile.pair = pair;
}

void Linear::multiply_rows(const Share& share, float* out) {
  const Tile& tile = share.tile;
  const int64_t first_row = share.group.first_row + tile.row;
  float* const scratch = scratch_.as<float>() + share.thread_idx * scratch_floats(limits_.cols);
  const auto tokens = share.group.tokens.subspan(static_cast<size_t>(tile.from), static_cast<size_t>(tile.tokens));
  if (form_ == Form::kFloat) {
    std::array<const float*, kTileTokens> x;  // the first are set
    for (size_t t = 0; t < tokens.size(); ++t) x[t] = float_rows_[static_cast<size_t>(tokens[t])];
    called_.add(kernels_.multiply({.w = share.weight.at(first_row, tile.rows),
                                   .x = std::span(x).first(tokens.size()),
                                   .out = out,
                                   .scratch = scratch,
                                   .next = share.next}));
    return;
  }
  // The rows made in place: copied, they were loaded in wider pieces than stored, which waits for all stores before.
  MultiplyPreparedArgs args{.w = share.weight.at(first_row, tile.rows),
                            .x = {},
                            .tokens = tile.tokens,
                            .out = out,
                            .scratch = scratch,
                            .next = share.next};
  if (const TokenTiles* const form = tiles_of(share.group)) {
    const auto first = static_cast<size_t>(first_tile_[static_cast<size_t>(tile.group)] + tile.from / kLaneTokens);
    args.x = std::span(tiles_).subspan(first, (tokens.size() + kLaneTokens - 1) / kLaneTokens);
    called_.add(form->multiply(args));
    return;
  }
  std::array<const std::byte*, kTileTokens> x;  // the first are set
  for (size_t t = 0; t < tokens.size(); ++t) x[t] = int8_rows_[static_cast<size_t>(tokens[t])];
  const int together = as_alone_ ? kernels_.int8->alike_tokens : tile.tokens;
  for (int first = 0; first < tile.tokens; first += together) {
    args.tokens = std::min(together, tile.tokens - first);
    args.x = std::span(x).subspan(static_cast<size_t>(first), static_cast<size_t>(args.tokens));
    args.out = out + first * kTileRows;
    args.next = first + together < tile.tokens ? nullptr : share.next;
    called_.add(kernels_.int8->multiply_rows(args));
  }
}

}  // namespace nibble::backend::cpu
