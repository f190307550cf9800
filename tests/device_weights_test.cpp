// What the CUDA backend makes of llama.cpp's files, bit for bit: its upload runs here over the emulated runtime, with
// the packing kernels' own source.

#include "backend/cost.h"
#include "backend/shards.h"
#include "backend/sliced_weight.h"
#include "backend/cuda/testing/mx_pack.h"
#include "backend/cuda/testing/q8.h"
#include "backend/cuda/memory/device_weights.h"
#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/testing/files.h"
#include "ggml_encode.h"
#include "gguf_copy.h"
#include "convert/gguf.h"
#include "model/gpt_oss.h"
#include "convert/synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

namespace nibble {
namespace {

using backend::DenseFormats;
using backend::HostWeight;
using backend::WeightFormat;
using backend::WeightHandle;
using backend::WeightRole;
using backend::cuda::DeviceWeights;
using backend::cuda::Matrices;
using enum WeightRole;

// So many words that the embeddings take more than one slab.
model::ModelConfig config_of(int64_t vocab) {
  model::ModelConfig config = model::truncated(model::preset("tiny"), 2);
  config.dims.hidden = config.dims.inter = 192;
  config.dims.vocab = vocab;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {1};
  return config;
}

using Bytes = std::vector<uint8_t>;

// All that kernels would read, by role and layer.
struct Uploaded {
  Uploaded(const model::ModelConfig& config, std::span<const HostWeight> weights, Matrices matrices,
           const DenseFormats& dense = {})
      : be(model::backend_config(config, {.max_tokens = 8, .max_rows = 1, .kv_pages = {4, 4}}, dense)),
        device({.config = be, .matrices = matrices, .files = {}, .upload_threads = 3}, nullptr) {
    for (const HostWeight& w : weights) put(w);
    device.finish();
    EXPECT_TRUE(device.finished());
    for (const auto& [key, handle] : handles) contents[key] = read(key, handle, matrices);
  }

  // A rank's, of the whole model's weights.
  Uploaded(const model::ModelConfig& config, std::vector<HostWeight> weights, Matrices matrices,
           const backend::Shard& shard)
      : Uploaded(backend::config_of(backend_config(config), shard), cut(std::move(weights), config.dims, shard),
                 matrices, config.dims.vocab) {}

  Uploaded(const backend::BackendConfig& of, const std::vector<HostWeight>& weights, Matrices matrices, int64_t vocab)
      : be(of),
        embedding_rows(vocab),
        device({.config = be, .matrices = matrices, .files = {}, .upload_threads = 3}, nullptr) {
    for (const HostWeight& w : weights) put(w);
    device.finish();
    for (const auto& [key, handle] : handles) contents[key] = read(key, handle, matrices);
  }

  static backend::BackendConfig backend_config(const model::ModelConfig& config) {
    return model::backend_config(config, {.max_tokens = 8, .max_rows = 1, .kv_pages = {4, 4}}, {});
  }
  static std::vector<HostWeight> cut(std::vector<HostWeight> weights, const backend::Dims& dims,
                                     const backend::Shard& shard) {
    for (HostWeight& w : weights) w.slice = slice_of(w, dims, shard);
    return weights;
  }

  static Bytes copy(const void* from, int64_t bytes) {
    const auto* first = static_cast<const uint8_t*>(from);
    return {first, first + bytes};
  }
  using Key = std::tuple<WeightRole, int>;
  void put(const HostWeight& w) {
    handles[{w.role, w.layer}] = device.upload(w);
    held[{w.role, w.layer}] = backend::cuda::held_dims(be, w);
  }
  Bytes read(const Key& key, WeightHandle handle, Matrices matrices) const {
    using namespace backend::cuda;  // NOLINT
    const WeightRole role = std::get<0>(key);
    const backend::Dims d = held.at(key);
    const int64_t values =
        role == kEmbedding && embedding_rows > 0 ? embedding_rows * d.hidden : backend::values_of(role, d);
    const bool experts = role == kGateUp || role == kDown, qkv = role == kQ || role == kK || role == kV;
    if (matrices == Matrices::kPacked && is_packed(role)) {
      const MatrixShape shape = packed_shape(role, d);
      const int64_t rows = qkv ? d.q_width() + 2 * d.kv_width() : shape.rows;
      return copy(device.matrix(handle).packed, layout::packed_bytes(packing_of(role, be.dense), rows, shape.cols));
    }
    if (matrices == Matrices::kPacked && (role == kQBias || role == kKBias || role == kVBias))
      return copy(device.qkv_bias(handle), 2 * (d.q_width() + 2 * d.kv_width()));
    if (!experts) return copy(device.bf16(handle), 2 * values);
    Bytes both = copy(device.mxfp4(handle).codes, values / 2);
    const Bytes scales = copy(device.mxfp4(handle).scales, values / 32);
    both.insert(both.end(), scales.begin(), scales.end());
    return both;
  }

  backend::BackendConfig be;
  int64_t embedding_rows = 0;  // of a rank's
  DeviceWeights device;
  std::map<Key, WeightHandle> handles;
  std::map<Key, backend::Dims> held;
  std::map<Key, Bytes> contents;
};

class Upload : public testing::Test {
 protected:
  void SetUp() override {
    backend::cuda::emulated_cuda() = {.card = {.name = "any", .memory_bytes = int64_t{1} << 37}, .packs = true};
  }
  void TearDown() override { backend::cuda::emulated_cuda() = {}; }

  static void expect_same(const Uploaded& found, const Uploaded& want) {
    ASSERT_EQ(found.contents.size(), want.contents.size());
    for (const auto& [key, bytes] : want.contents) {
      const auto& [role, layer] = key;
      EXPECT_TRUE(found.contents.at(key) == bytes) << backend::name_of(role) << " of layer " << layer;
    }
  }
};

TEST_F(Upload, of_gguf_is_that_of_the_checkpoint_where_nothing_is_rounded) {
  const test::ScratchDir dir;
  const model::ModelConfig config = config_of(512);
  const convert::DummyWeights made(config, 3, nullptr);
  for (const DType dense : {DType::kBf16, DType::kF32}) {
    const auto file = test::as_gguf(config, made.weights(), dir / "m.gguf", {.dense = dense, .part_bytes = 300'000});
    EXPECT_GT(file.files().size(), 2u);  // split
    const std::vector<HostWeight> weights = model::bind_weights(file.tensors(), config);
    for (const Matrices matrices : {Matrices::kPacked, Matrices::kRowOrder})
      expect_same({config, weights, matrices}, {config, made.weights(), matrices});
    for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kMxfp8}) {
      const DenseFormats requantised{.qkv = format, .o = format, .lm_head = format};
      expect_same({config, weights, Matrices::kPacked, requantised},
                  {config, made.weights(), Matrices::kPacked, requantised});
    }
  }
}

TEST_F(Upload, of_a_layer_with_fewer_experts_is_that_of_a_model_with_as_many) {
  model::ModelConfig config = config_of(512);
  config.layer_experts = {config.dims.experts, 5};
  const convert::DummyWeights made(config, 3, nullptr);
  for (const Matrices matrices : {Matrices::kPacked, Matrices::kRowOrder}) {
    std::vector<HostWeight> both, second;
    for (const HostWeight& w : made.weights()) {
      if (!has_experts(w.role)) continue;
      both.push_back(w);
      if (w.layer == 1) second.push_back(w);
    }
    model::ModelConfig alike = config;
    alike.layer_experts.clear();
    alike.dims.experts = 5;
    const Uploaded found(config, both, matrices), want(alike, second, matrices);
    for (const auto& [key, bytes] : want.contents) EXPECT_TRUE(found.contents.at(key) == bytes);
    const backend::Shard half = shard_of(config.dims, {.count = 2}, 1);
    expect_same({config, both, matrices, half}, {config, both, matrices, half});
    for (const HostWeight& w : both) EXPECT_EQ(slice_of(w, config.dims, half).experts.count, w.layer == 1 ? 5 : 8);
  }
}

TEST_F(Upload, finds_the_largest_and_the_smallest_scale_of_the_experts_and_of_other_matrices) {
  const model::ModelConfig config = config_of(512);
  const convert::DummyWeights made(config, 3, nullptr);
  backend::cuda::layout::ScaleRange want;
  for (const HostWeight& w : made.weights())
    if (w.format == WeightFormat::kMxfp4)
      for (const std::byte code : w.scales.bytes) want.add(static_cast<int>(code));
  const Uploaded plain(config, made.weights(), Matrices::kPacked);
  const backend::cuda::layout::ModelScales found = plain.device.scales();
  EXPECT_EQ(found.experts.largest, want.largest);
  EXPECT_EQ(found.experts.smallest, want.smallest);
  EXPECT_EQ(found.dense.largest, 0);  // none is in MXFP4
  const Uploaded requantised(config, made.weights(), Matrices::kPacked,
                             {.qkv = {}, .o = WeightFormat::kMxfp4, .lm_head = {}});
  EXPECT_EQ(requantised.device.scales().experts.largest, want.largest);
  EXPECT_GT(requantised.device.scales().dense.largest, 0);
}

// Exact in a float.
float value_of(const HostWeight& w, int64_t idx) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(w.values.bytes.data());
  const auto f16 = [&](int64_t at) { return F16{static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8)}.to_float(); };
  if (w.format == WeightFormat::kF16) return f16(2 * idx);
  if (w.format == WeightFormat::kGgmlMxfp4) {
    const uint8_t* block = bytes + idx / 32 * 17;
    const uint8_t two = block[1 + idx % 16];
    const E2m1 code{static_cast<uint8_t>(idx % 32 < 16 ? two & 15 : two >> 4)};
    return code.to_float() * E8m0{block[0]}.to_float();
  }
  const int64_t block = idx / 32 * 34;
  return f16(block) * static_cast<float>(static_cast<int8_t>(bytes[block + 2 + idx % 32]));
}

// The same weights, dense ones in Q8_0, F16 and MXFP4 as floats of type T.
template <class T>
struct Decoded {
  Decoded(std::vector<HostWeight> from, const backend::Dims& dims, WeightFormat format) : weights(std::move(from)) {
    for (HostWeight& w : weights) {
      const bool experts = w.role == kGateUp || w.role == kDown;
      if (experts || w.format == WeightFormat::kF32) continue;
      std::vector<T>& own = values.emplace_back(backend::values_of(w.role, dims));
      for (size_t i = 0; i < own.size(); ++i) {
        const float value = value_of(w, static_cast<int64_t>(i));
        if constexpr (std::is_same_v<T, Bf16>)
          own[i] = Bf16::from_float(value);
        else
          own[i] = value;
      }
      w.format = format;
      w.values.dtype = format == WeightFormat::kF32 ? DType::kF32 : DType::kBf16;
      w.values.bytes = std::as_bytes(std::span(own));
    }
    EXPECT_EQ(values.size(), 2u + 4 * 2);  // embeddings, and q, k, v and o of two layers
  }
  std::vector<HostWeight> weights;
  std::deque<std::vector<T>> values;
};

TEST_F(Upload, rounds_dense_matrices_to_the_nearest_bf16_and_requantises_them_unrounded) {
  const test::ScratchDir dir;
  const model::ModelConfig config = config_of(90'112);
  const convert::DummyWeights made(config, 4, nullptr);
  for (const DType dense : {DType::kGgmlQ8, DType::kF16}) {
    const auto file = test::as_gguf(config, made.weights(), dir / "m.gguf", {.dense = dense});
    std::vector<HostWeight> weights = model::bind_weights(file.tensors(), config);
    const auto is_o = [](const HostWeight& w) { return w.role == kO; };
    const auto is_down = [](const HostWeight& w) { return w.role == kDown; };
    HostWeight& o = *std::find_if(weights.begin(), weights.end(), is_o);  // of layer 0: bytes of its experts
    o.format = WeightFormat::kGgmlMxfp4;
    o.values.dtype = DType::kU8;
    o.values.bytes = std::find_if(weights.begin(), weights.end(), is_down)
                         ->values.bytes.first(static_cast<size_t>(backend::values_of(kO, config.dims) / 32 * 17));
    const Decoded<Bf16> rounded(weights, config.dims, WeightFormat::kBf16);
    for (const Matrices matrices : {Matrices::kPacked, Matrices::kRowOrder})
      expect_same({config, weights, matrices}, {config, rounded.weights, matrices});
    const Decoded<float> exact(weights, config.dims, WeightFormat::kF32);
    const DenseFormats mixed{.qkv = WeightFormat::kMxfp4, .o = WeightFormat::kMxfp8, .lm_head = WeightFormat::kMxfp8};
    expect_same({config, weights, Matrices::kPacked, mixed}, {config, exact.weights, Matrices::kPacked, mixed});
  }
}

// Values of what few tokens multiply, and the copy of a run without.
TEST_F(Upload, holds_q8_0_as_it_is_beside_what_it_would_be_otherwise) {
  using namespace backend::cuda;  // NOLINT
  const test::ScratchDir dir;
  model::ModelConfig config = config_of(512);
  config.dims.heads = 8;
  config.dims.kv_heads = 2;
  const convert::DummyWeights made(config, 4, nullptr);
  const auto file = test::as_gguf(config, made.weights(), dir / "m.gguf", {.dense = DType::kGgmlQ8});
  const std::vector<HostWeight> weights = model::bind_weights(file.tensors(), config);
  backend::BackendConfig be = Uploaded::backend_config(config), with = be;
  with.dense = {.qkv = WeightFormat::kGgmlQ8, .o = WeightFormat::kGgmlQ8, .lm_head = WeightFormat::kGgmlQ8};
  const Uploaded plain(be, weights, Matrices::kPacked, 512), both(with, weights, Matrices::kPacked, 512);
  const Uploaded recoded(with, made.weights(), Matrices::kPacked, 512);  // of bf16
  with.dense.q8_copies = false;
  const Uploaded alone(with, weights, Matrices::kPacked, 512);
  int matrices = 0;
  for (const HostWeight& w : weights) {
    const auto& [packed, wide] = both.device.matrix(both.handles.at({w.role, w.layer}));
    if (!is_packed(w.role) || is_expert_matrix(w.role)) continue;
    ++matrices;
    const Bytes& want = plain.contents.at({w.role, w.layer});
    EXPECT_TRUE(Uploaded::copy(wide, std::ssize(want)) == want) << backend::name_of(w.role);
    const MatrixShape shape = packed_shape(w.role, config.dims);
    const int64_t first = w.role == kK   ? config.dims.q_width()
                          : w.role == kV ? config.dims.q_width() + config.dims.kv_width()
                                         : 0;
    const int64_t before = layout::packed_bytes(layout::Packing::kQ8, first, shape.cols);
    const uint8_t* const own = packed + before;
    const uint8_t* const other = recoded.device.matrix(recoded.handles.at({w.role, w.layer})).packed + before;
    const PackedWeights::Matrix only = alone.device.matrix(alone.handles.at({w.role, w.layer}));
    const uint8_t* const third = only.packed + before;
    EXPECT_EQ(only.packed, only.wide);
    for (int64_t i = 0; i < shape.rows * shape.cols; ++i) {
      const int64_t tile = i / shape.cols / 16, k = i % shape.cols;
      const auto row = static_cast<int>(i / shape.cols % 16);
      ASSERT_EQ(packed_q8_value(own, shape.cols, tile, row, k),
                double{value_of(w, layout::source_row(shape.order, tile, row) * shape.cols + k)})
          << backend::name_of(w.role) << ' ' << i;
      ASSERT_EQ(packed_q8_value(own, shape.cols, tile, row, k), packed_q8_value(other, shape.cols, tile, row, k));
      ASSERT_EQ(packed_q8_value(own, shape.cols, tile, row, k), packed_q8_value(third, shape.cols, tile, row, k));
    }
  }
  EXPECT_EQ(matrices, 1 + 4 * 2);
  with.dense.q8_copies = true;
  for (int rank = 0; rank < 2; ++rank) {
    const backend::Shard shard = backend::shard_of(config.dims, {.count = 2}, rank);
    const std::vector<HostWeight> cut = Uploaded::cut(weights, config.dims, shard);
    const Uploaded part(backend::config_of(be, shard), cut, Matrices::kPacked, 512),
        part_of_both(backend::config_of(with, shard), cut, Matrices::kPacked, 512);
    for (const HostWeight& w : cut) {
      if (!is_packed(w.role) || is_expert_matrix(w.role)) continue;
      const Bytes& want = part.contents.at({w.role, w.layer});
      EXPECT_TRUE(Uploaded::copy(part_of_both.device.matrix(part_of_both.handles.at({w.role, w.layer})).wide,
                                 std::ssize(want)) == want);
    }
  }
}

// Of a rank's tensor in row order, value by value: those of the whole at the slice's places, or zeros.
void expect_part(const HostWeight& whole, const backend::Slice& slice, const Bytes& found) {
  const bool blocks = whole.format == WeightFormat::kMxfp4;
  const int64_t values = blocks ? 32 : 1, bytes = blocks ? 16 : 2;
  const Shape& shape = whole.values.shape;
  const bool experts =
      whole.role == kGateUp || whole.role == kDown || whole.role == kGateUpBias || whole.role == kDownBias;
  const int64_t rows = shape[experts ? 1 : 0],
                units = std::ssize(whole.values.bytes) / bytes / rows / (experts ? shape[0] : 1);
  const auto count = slice.values() / values;
  ASSERT_EQ(std::ssize(found), count * (blocks ? 17 : 2)) << backend::name_of(whole.role);
  const auto* codes = reinterpret_cast<const uint8_t*>(whole.values.bytes.data());
  const auto* scales = reinterpret_cast<const uint8_t*>(whole.scales.bytes.data());
  int64_t at = 0, wrong = 0;
  for (int64_t e = slice.experts.first; e < slice.experts.end(); ++e)
    for (int64_t r = slice.rows.first; r < slice.rows.end(); ++r)
      for (int64_t u = slice.cols.first / values; u < slice.cols.end() / values; ++u, ++at) {
        const int64_t from = (e * rows + r) * units + u;
        for (int64_t b = 0; b < bytes; ++b)
          wrong += found[static_cast<size_t>(at * bytes + b)] == (slice.zeros ? 0 : codes[from * bytes + b]) ? 0 : 1;
        if (blocks) wrong += found[static_cast<size_t>(count * bytes + at)] == scales[from] ? 0 : 1;
      }
  EXPECT_EQ(wrong, 0) << backend::name_of(whole.role) << " of layer " << whole.layer;
}

// A rank's tensors in row order as a checkpoint of its own.
// Blocks that no kernel reads, and experts in floats that lie transposed, are uploaded as if they had been recoded
// before.
TEST_F(Upload, of_what_is_recoded_is_that_of_its_values) {
  model::ModelConfig config = config_of(512);
  config.dims.inter = 384;
  config.dims.heads = 8;
  config.dims.kv_heads = 2;
  const convert::DummyWeights made(config, 5, nullptr);
  std::deque<std::vector<std::byte>> bytes;
  std::vector<HostWeight> stored = made.weights(), plain = stored;
  for (size_t i = 0; i < stored.size(); ++i) {
    HostWeight& w = stored[i];
    const backend::Dims& d = config.dims;
    const bool experts = backend::is_expert_matrix(w.role),
               block = w.role == kQ || w.role == kO || w.role == kEmbedding;
    if (!experts && !block) continue;
    const Shape shape = model::shape_of(w.role, d);
    std::vector<float> values(static_cast<size_t>(backend::values_of(w.role, d)));
    for (size_t n = 0; n < values.size(); ++n)
      values[n] = std::sin(static_cast<float>(n) * 0.37f + static_cast<float>(i));
    w.scales = {};
    if (block) {
      const DType type = w.role == kQ ? DType::kGgmlQ40 : DType::kGgmlQ51;
      w.format = type == DType::kGgmlQ40 ? WeightFormat::kGgmlQ8 : WeightFormat::kBf16;
      w.values = {.dtype = type, .shape = shape, .bytes = bytes.emplace_back(test::ggml_encode(type, values))};
    } else {
      std::vector<std::byte>& floats = bytes.emplace_back(values.size() * sizeof(float));
      std::memcpy(floats.data(), values.data(), floats.size());
      w.format = WeightFormat::kGgmlMxfp4;
      w.values = {.dtype = DType::kF32, .shape = shape, .bytes = floats};
      w.transposed = true;
    }
    EXPECT_TRUE(backend::is_recoded(w));
    backend::SlicedWeight whole = backend::sliced(w);
    plain[i] = whole.weight;
    for (RawTensor* part : {&plain[i].values, &plain[i].odd})
      if (!part->bytes.empty()) part->bytes = bytes.emplace_back(part->bytes.begin(), part->bytes.end());
  }
  for (const Matrices matrices : {Matrices::kPacked, Matrices::kRowOrder}) {
    expect_same({config, stored, matrices}, {config, plain, matrices});
    for (int rank = 0; rank < 2; ++rank) {
      const backend::Shard shard = backend::shard_of(config.dims, {.count = 2}, rank);
      expect_same({config, stored, matrices, shard}, {config, plain, matrices, shard});
    }
  }
}

std::vector<HostWeight> as_weights(const Uploaded& rank, const std::vector<HostWeight>& whole) {
  std::vector<HostWeight> own = whole;
  for (HostWeight& w : own) {
    const Bytes& bytes = rank.contents.at({w.role, w.layer});
    const auto all = std::as_bytes(std::span(bytes));
    w.values.bytes = w.format == WeightFormat::kMxfp4 ? all.first(all.size() / 17 * 16) : all;
    if (w.format == WeightFormat::kMxfp4) w.scales.bytes = all.subspan(all.size() / 17 * 16);
    const backend::Dims& d = rank.held.at({w.role, w.layer});
    if (has_experts(w.role)) w.values.shape[0] = d.experts;
    if (w.role != kDown) continue;
    w.values.shape = {d.experts, d.hidden, d.inter / 32, 16};
    w.scales.shape = {d.experts, d.hidden, d.inter / 32};
  }
  return own;
}

TEST_F(Upload, of_a_rank_is_its_part_of_every_tensor) {
  model::ModelConfig config = config_of(512);
  config.dims.inter = 384;
  config.dims.heads = 8;
  config.dims.kv_heads = 2;
  const convert::DummyWeights made(config, 5, nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    const backend::Shard shard = backend::shard_of(config.dims, {.count = 2}, rank);
    const Uploaded rows(config, made.weights(), Matrices::kRowOrder, shard);
    for (const HostWeight& w : made.weights())
      expect_part(w, slice_of(w.role, config.dims, shard), rows.contents.at({w.role, w.layer}));
    const Uploaded packed(config, made.weights(), Matrices::kPacked, shard);
    const Uploaded want(rows.be, as_weights(rows, made.weights()), Matrices::kPacked, config.dims.vocab);
    expect_same(packed, want);
  }
}

TEST_F(Upload, of_a_rank_of_whole_experts_is_its_experts) {
  model::ModelConfig config = config_of(512);
  config.dims.heads = 16;
  config.dims.kv_heads = 4;
  const convert::DummyWeights made(config, 5, nullptr);
  for (int rank = 0; rank < 4; ++rank) {
    const backend::Shard shard = backend::shard_of(config.dims, {.count = 4, .whole_experts = true}, rank);
    const Uploaded rows(config, made.weights(), Matrices::kRowOrder, shard);
    for (const HostWeight& w : made.weights())
      expect_part(w, slice_of(w.role, config.dims, shard), rows.contents.at({w.role, w.layer}));
    const Uploaded packed(config, made.weights(), Matrices::kPacked, shard);
    const Uploaded want(rows.be, as_weights(rows, made.weights()), Matrices::kPacked, config.dims.vocab);
    expect_same(packed, want);
  }
}

// Columns of down come in pairs of blocks where they are packed: behind an odd number of blocks there are zeros.
TEST_F(Upload, of_a_rank_is_filled_up_to_what_the_packing_takes) {
  model::ModelConfig config = config_of(512);
  config.dims.inter = 608;  // 19 blocks: 10 and 9, of which 10 are packed
  config.dims.heads = 8;
  config.dims.kv_heads = 2;
  const convert::DummyWeights made(config, 5, nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    const backend::Shard shard = backend::shard_of(config.dims, {.count = 2}, rank);
    const backend::BackendConfig be = backend::config_of(Uploaded::backend_config(config), backend::cuda_shard(shard));
    ASSERT_EQ(be.dims.inter, rank == 0 ? 320 : 288);
    const std::vector<HostWeight> cut = Uploaded::cut(made.weights(), config.dims, shard);
    const Uploaded rows(be, cut, Matrices::kRowOrder, config.dims.vocab);
    for (const HostWeight& w : made.weights())
      expect_part(w, slice_of(w.role, config.dims, shard), rows.contents.at({w.role, w.layer}));
    const Uploaded packed(be, cut, Matrices::kPacked, config.dims.vocab);
    expect_same(packed, Uploaded(be, as_weights(rows, made.weights()), Matrices::kPacked, config.dims.vocab));
    const int64_t down_rows = be.dims.experts * be.dims.hidden, own = be.dims.inter / 32, held = 10;
    Bytes codes(static_cast<size_t>(down_rows * held * 16)), scales(static_cast<size_t>(down_rows * held));
    backend::cuda::layout::unpack(packed.contents.at({kDown, 1}),
                                  {.rows = down_rows, .cols = held * 32, .blocks = codes, .scales = scales});
    const Bytes& want = rows.contents.at({kDown, 1});
    for (int64_t row = 0; row < down_rows; ++row)
      for (int64_t b = 0; b < held; ++b) {
        const auto at = static_cast<size_t>(row * held + b), from = static_cast<size_t>(row * own + b);
        ASSERT_EQ(scales[at], b < own ? want[static_cast<size_t>(down_rows * own * 16) + from] : 0);
        for (size_t i = 0; i < 16; ++i) ASSERT_EQ(codes[at * 16 + i], b < own ? want[from * 16 + i] : 0);
      }
  }
}

TEST_F(Upload, refuses_gate_and_up_in_two_formats) {
  const test::ScratchDir dir;
  const model::ModelConfig config = config_of(512);
  const convert::DummyWeights made(config, 3, nullptr);
  const auto file = test::as_gguf(config, made.weights(), dir / "m.gguf", {.dense = DType::kF16});
  std::vector<HostWeight> weights = model::bind_weights(file.tensors(), config);
  const auto bias =
      std::find_if(weights.begin(), weights.end(), [](const HostWeight& w) { return w.role == kGateUpBias; });
  bias->odd_format = WeightFormat::kF16;
  bias->odd.dtype = DType::kF16;
  try {
    const Uploaded uploaded(config, weights, Matrices::kPacked);
    FAIL() << "gate in f32, up in f16";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_STREQ(error.what(), "cuda: layer 0 gate_up_bias: want gate and up in one format, found f32 and f16");
  }
}

TEST_F(Upload, refuses_what_it_has_no_kernels_for) {
  const model::ModelConfig config = config_of(512);
  const convert::DummyWeights made(config, 3, nullptr);
  std::vector<HostWeight> weights = made.weights();
  weights[0].format = WeightFormat::kMxfp8;
  weights[0].values.dtype = DType::kU8;
  try {
    const Uploaded uploaded(config, weights, Matrices::kPacked);
    FAIL() << "an embedding in MXFP8";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_STREQ(error.what(), "cuda: embedding: want bf16, f16, f32, ggml q8_0 or ggml mxfp4, found mxfp8");
  }
}

}  // namespace
}  // namespace nibble
