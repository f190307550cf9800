#include "backend/cuda/memory/device_weights.h"

#include "backend/cost.h"
#include "backend/cuda/dense/gemv_plan.h"
#include "backend/sliced_weight.h"
#include "base/error.h"

#include <algorithm>
#include <array>

namespace nibble::backend::cuda {

namespace {

using layout::Packing;
using layout::RowOrder;

bool is_qkv(WeightRole role) { return role == WeightRole::kQ || role == WeightRole::kK || role == WeightRole::kV; }

// Rows of the layer's qkv matrix before this role's.
int64_t first_row(WeightRole role, const Dims& d) {
  const bool key = role == WeightRole::kK || role == WeightRole::kKBias;
  const bool value = role == WeightRole::kV || role == WeightRole::kVBias;
  return key ? d.q_width() : value ? d.q_width() + d.kv_width() : 0;
}

}  // namespace

bool is_packed(WeightRole role) {
  return is_qkv(role) || role == WeightRole::kO || role == WeightRole::kUnembedding || role == WeightRole::kGateUp ||
         role == WeightRole::kDown;
}

Dims held_dims(const BackendConfig& config, const HostWeight& weight) {
  Dims held = config.dims;
  if (has_experts(weight.role)) held.experts = weight.slice ? weight.slice->experts.count : weight.values.shape[0];
  return held;
}

MatrixShape matrix_shape(WeightRole role, const Dims& d) {
  switch (role) {
    case WeightRole::kQ: return {d.q_width(), d.hidden, RowOrder::kHeads64};
    case WeightRole::kK:
    case WeightRole::kV: return {d.kv_width(), d.hidden, RowOrder::kHeads64};
    case WeightRole::kO: return {d.hidden, d.q_width(), RowOrder::kPlain};
    case WeightRole::kUnembedding: return {d.vocab, d.hidden, RowOrder::kPlain};
    case WeightRole::kGateUp: return {d.experts * 2 * d.inter, d.hidden, RowOrder::kGateUp};
    case WeightRole::kDown: return {d.experts * d.hidden, d.inter, RowOrder::kPlain};
    default: return {};
  }
}

MatrixShape packed_shape(WeightRole role, const Dims& d) {
  MatrixShape shape = matrix_shape(role, d);
  if (role == WeightRole::kDown) shape.cols = layout::block_pair_width(shape.cols);
  return shape;
}

PackedWeights::PackedScales* PackedWeights::packed_scales() {
  if (packed_scales_ == nullptr) {
    packed_scales_ = allocate_device(sizeof(PackedScales), "packing");
    const PackedScales before{.codes = scales_};
    cuda_check(cudaMemcpyAsync(packed_scales_.get(), &before, sizeof before, cudaMemcpyHostToDevice, stream_));
    cuda_check(cudaStreamSynchronize(stream_));  // the slabs have streams of their own
  }
  return reinterpret_cast<PackedScales*>(packed_scales_.get());
}

void require_scales(int bad) {
  if (bad > 0)
    throw Error(Code::kUnsupported, "cuda: {} blocks of 32 weights have a scale above 2^{} or are not finite", bad,
                layout::kMaxScaleCode - 127);
}

void pack(const PackArgs& all, uint8_t* q8, std::optional<WeightFormat> quantize, const SlabSource& source,
          Slabs& slabs) {
  uint8_t* const packed = all.packed;
  const bool changed = quantize || (all.packing != Packing::kQ8 && !source.as_shipped());
  const Slabs::Room room = changed ? Slabs::Room::kWanted : Slabs::Room::kNone;
  slabs.run(source, room, [=](const Slabs::Rows& rows) {
    PackArgs pack = all;
    pack.rows = rows.count;
    pack.values = rows.even;
    if (q8 != nullptr) {
      PackArgs exact = pack;
      exact.packing = Packing::kQ8;
      exact.packed = q8 + layout::packed_bytes(Packing::kQ8, rows.first, source.cols);
      pack_weights(exact, rows.stream);
    }
    pack.scales = rows.scales;
    if (changed) {
      const int64_t code_bytes = rows.count * source.cols / (pack.packing == Packing::kMxfp4 ? 2 : 1);
      uint8_t* const scales = pack.packing == Packing::kBf16 ? nullptr : rows.room + code_bytes;
      if (quantize) {
        quantize_weights({.packing = pack.packing,
                          .format = source.format,
                          .from = rows.even,
                          .values = rows.room,
                          .scales = scales,
                          .rows = rows.count,
                          .cols = source.cols},
                         rows.stream);
      } else {
        translate(source, rows, rows.room, scales);
      }
      pack.values = rows.room;
      pack.scales = scales;
    }
    pack.packed = packed + layout::packed_bytes(pack.packing, rows.first, source.cols);
    pack_weights(pack, rows.stream);
  });
}

PackedWeights::Qkv& PackedWeights::qkv(int layer) {
  const Dims& d = config_.dims;
  const int64_t rows = d.q_width() + 2 * d.kv_width();
  qkv_.resize(std::max(qkv_.size(), static_cast<size_t>(layer) + 1));
  Qkv& own = qkv_[static_cast<size_t>(layer)];
  if (own.bias == nullptr)
    own = {allocate(WeightRole::kQ, rows, d.hidden, "q, k and v"), allocate_device(rows * 2, "q, k and v biases")};
  return own;
}

PackedWeights::Packed PackedWeights::allocate(WeightRole role, int64_t rows, int64_t cols,
                                              std::string_view what) const {
  const Packing packing = packing_of(role, config_.dense);
  Packed own{allocate_device(layout::packed_bytes(packing, rows, cols), what), {}};
  if (packing == Packing::kQ8 && config_.dense.q8_copies)
    own.copy = allocate_device(layout::packed_bytes(Packing::kBf16, rows, cols), what);
  return own;
}

PackedWeights::Bias PackedWeights::qkv_bias(WeightRole role, int layer) {
  auto* whole = reinterpret_cast<Bf16*>(qkv(layer).bias.get());
  return {whole + first_row(role, config_.dims), whole};
}

PackedWeights::Matrix PackedWeights::upload(WeightRole role, int layer, const SlabSource& source, Slabs& slabs) {
  const MatrixShape shape{source.rows, source.cols, packed_shape(role, config_.dims).order};
  if (!is_qkv(role)) matrices_.push_back(allocate(role, shape.rows, shape.cols, backend::name_of(role)));
  const Packed& whole = is_qkv(role) ? qkv(layer).packed : matrices_.back();
  const int64_t first = is_qkv(role) ? first_row(role, config_.dims) : 0;
  const auto part = [&](const DeviceBytes& of, Packing packing) {
    return reinterpret_cast<uint8_t*>(of.get() + layout::packed_bytes(packing, first, shape.cols));
  };
  const bool twice = whole.copy != nullptr;
  const Packing packing = twice ? Packing::kBf16 : packing_of(role, config_.dense);
  PackedScales* const scales = packed_scales();
  const bool experts = is_expert_matrix(role);
  pack({.packing = packing,
        .packed = part(twice ? whole.copy : whole.matrix, packing),
        .bad_scales = &scales->bad,
        .scale_range = experts ? &scales->codes.experts : &scales->codes.dense,
        .cols = shape.cols,
        .order = shape.order},
       twice ? part(whole.matrix, Packing::kQ8) : nullptr, config_.dense.in_mx(role), source, slabs);
  return whole.pointers();
}

void PackedWeights::finish() {
  if (packed_scales_ == nullptr) return;
  PackedScales packed;
  cuda_check(cudaMemcpyAsync(&packed, packed_scales_.get(), sizeof packed, cudaMemcpyDeviceToHost, stream_));
  cuda_check(cudaStreamSynchronize(stream_));
  packed_scales_.reset();
  require_scales(packed.bad);
  scales_ = packed.codes;
}

namespace {

bool is_qkv_bias(WeightRole role) {
  return role == WeightRole::kQBias || role == WeightRole::kKBias || role == WeightRole::kVBias;
}

// Values that the backend holds: of its heads, its inner width and its rows of logits, but of the whole embedding.
int64_t held_values(const HostWeight& weight, const Dims& d) {
  return weight.role == WeightRole::kEmbedding ? weight.values.shape.front() * d.hidden : values_of(weight.role, d);
}

// A part as it is held: an inner width that is narrower than the backend's is filled up with zeros, and down's columns
// to what is packed.
Extent filled(const HostWeight& weight, const Dims& d, bool packed) {
  const Slice& slice = *weight.slice;
  switch (weight.role) {
    case WeightRole::kGateUp:
    case WeightRole::kGateUpBias: return {2 * d.inter, slice.cols.count};
    case WeightRole::kDown: return {slice.rows.count, packed ? packed_shape(weight.role, d).cols : d.inter};
    default: return {};
  }
}

void check_format(const HostWeight& weight, const DenseFormats& dense) {
  using enum WeightFormat;
  const WeightFormat found = weight.format;
  const bool experts = is_expert_matrix(weight.role), q8 = dense.of(weight.role) == kGgmlQ8;
  const bool served =
      q8 ? found == kGgmlQ8 : found == kGgmlMxfp4 || (experts ? found == kMxfp4 : found != kMxfp4 && found != kMxfp8);
  if (served) return;
  throw Error(Code::kUnsupported, "cuda: {}: want {}, found {}", backend::name_of(weight.role),
              q8        ? "ggml q8_0"
              : experts ? "mxfp4"
                        : "bf16, f16, f32, ggml q8_0 or ggml mxfp4",
              backend::name_of(found));
}

}  // namespace

DeviceWeights::DeviceWeights(const Options& options, cudaStream_t stream) : options_(options), stream_(stream) {
  if (options_.matrices == Matrices::kPacked) packed_.emplace(options_.config, stream);
}

WeightHandle DeviceWeights::upload(const HostWeight& weight) {
  if (options_.config.head) return upload_head(weight);
  const Dims d = held_dims(options_.config, weight);
  HostWeight cut = in_q8(weight, options_.config.dense);
  const bool fills = packed_ && weight.role == WeightRole::kDown && packed_shape(weight.role, d).cols != d.inter;
  if (!cut.slice && fills) cut.slice = whole_of(weight.role, d);
  const bool recodes = is_recoded(cut);
  if (!cut.slice && !recodes) return upload_all(cut);
  if (recodes && !recoders_) recoders_.emplace(options_.upload_threads);
  const Extent extent = cut.slice ? filled(cut, d, packed_.has_value()) : Extent{};
  const SlicedWeight part = sliced(cut, extent, recoders_ ? &*recoders_ : nullptr);
  const WeightHandle handle = upload_all(part.weight);
  if (part.copies.empty()) return handle;
  slabs_->wait();  // the copies are read until then; one tensor's at a time are enough for a host's memory
  cuda_check(cudaStreamSynchronize(stream_));
  return handle;
}

WeightHandle DeviceWeights::upload_head(const HostWeight& weight) {
  using enum WeightRole;
  const Dims& d = options_.config.dims;
  const bool bias = is_qkv_bias(weight.role), qkv = bias || weight.role == kQ || weight.role == kK || weight.role == kV;
  const bool matrix = weight.values.shape.size() > 1 && weight.role != kGateUpBias && weight.role != kDownBias;
  const auto count = [](const RawTensor& tensor) { return std::ssize(tensor.bytes) / bytes_of(tensor.dtype); };
  const int64_t value_bytes = matrix ? 2 : 4,
                bytes = value_bytes * (count(weight.values) + (weight.odd.bytes.empty() ? 0 : count(weight.odd)));
  DeviceWeight own;
  std::byte* to = nullptr;
  if (qkv) {
    std::byte*& first = head_qkv_[{weight.layer, bias}];
    const int64_t row = value_bytes * (matrix ? weight.values.shape.back() : 1);
    if (first == nullptr) {
      own.values = allocate_device(row * (d.q_width() + 2 * d.kv_width()), "a head's q, k and v");
      first = own.values.get();
    }
    const bool q = weight.role == kQ || weight.role == kQBias, k = weight.role == kK || weight.role == kKBias;
    to = first + (q ? 0 : row * (d.q_width() + (k ? 0 : d.kv_width())));
  } else {
    own.values = allocate_device(bytes, backend::name_of(weight.role));
    to = own.values.get();
  }
  if (!uploader_) uploader_.emplace(options_.files, options_.upload_threads, options_.cached);
  if (!slabs_) slabs_.emplace(*uploader_);
  for (const RawTensor* part : {&weight.values, &weight.odd}) {
    if (part->bytes.empty()) continue;
    if (matrix) {
      const int64_t cols = part->shape.back();
      put({.format = weight.format,
           .rows = count(*part) / cols,
           .cols = cols,
           .even = part->bytes,
           .odd = {},
           .scales = {}},
          to, nullptr);
    } else {
      const std::vector<float> values = floats_of(*part);
      cuda_check(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice, stream_));
      cuda_check(cudaStreamSynchronize(stream_));
    }
    to += value_bytes * count(*part);
  }
  weights_.push_back(std::move(own));
  return {static_cast<int32_t>(weights_.size()) - 1};
}

WeightHandle DeviceWeights::upload_all(const HostWeight& weight) {
  check_format(weight, options_.config.dense);
  if (!weight.odd.bytes.empty() && weight.odd_format != weight.format)
    throw Error(Code::kUnsupported, "cuda: layer {} {}: want gate and up in one format, found {} and {}", weight.layer,
                backend::name_of(weight.role), backend::name_of(weight.format), backend::name_of(weight.odd_format));
  if (!uploader_) uploader_.emplace(options_.files, options_.upload_threads, options_.cached);
  if (!slabs_) slabs_.emplace(*uploader_);
  const Dims d = held_dims(options_.config, weight);
  const int64_t values = held_values(weight, d);
  SlabSource source{.format = weight.format,
                    .rows = values,
                    .cols = 1,
                    .even = weight.values.bytes,
                    .odd = weight.odd.bytes,
                    .scales = weight.scales.bytes};
  if (is_packed(weight.role)) {
    const MatrixShape shape = packed_ ? packed_shape(weight.role, d) : matrix_shape(weight.role, d);
    source.rows = shape.rows;
    source.cols = shape.cols;
  }
  DeviceWeight own;
  if (packed_ && is_packed(weight.role)) {
    own.matrix = packed_->upload(weight.role, weight.layer, source, *slabs_);
  } else if (packed_ && is_qkv_bias(weight.role)) {
    const PackedWeights::Bias bias = packed_->qkv_bias(weight.role, weight.layer);
    put(source, reinterpret_cast<std::byte*>(bias.part), nullptr);
    own.qkv_bias = bias.whole;
  } else {
    const bool mxfp4 = is_expert_matrix(weight.role);
    own.values = allocate_device(mxfp4 ? values / 2 : values * 2, backend::name_of(weight.role));
    if (mxfp4) own.scales = allocate_device(values / kMxBlock, backend::name_of(weight.role));
    put(source, own.values.get(), own.scales.get());
  }
  weights_.push_back(std::move(own));
  return {static_cast<int32_t>(weights_.size()) - 1};
}

void DeviceWeights::put(const SlabSource& source, std::byte* values, std::byte* scales) {
  if (source.as_shipped()) {
    uploader_->copy(std::array{Uploader::Part{values, source.even}}, stream_);
    if (scales != nullptr) uploader_->copy(std::array{Uploader::Part{scales, source.scales}}, stream_);
    return;
  }
  slabs_->run(source, Slabs::Room::kNone, [source, values, scales](const Slabs::Rows& rows) {
    const int64_t first = rows.first * source.cols;
    translate(source, rows, reinterpret_cast<uint8_t*>(values) + (scales == nullptr ? first * 2 : first / 2),
              scales == nullptr ? nullptr : reinterpret_cast<uint8_t*>(scales) + first / kMxBlock);
  });
}

void DeviceWeights::finish() {
  if (finished()) return;
  slabs_->wait();
  if (packed_) packed_->finish();
  cuda_check(cudaStreamSynchronize(stream_));  // the ring is still read
  slabs_.reset();
  uploader_.reset();
  recoders_.reset();
}

MxfpMatrix DeviceWeights::mxfp4(WeightHandle handle) const {
  const DeviceWeight& w = of(handle);
  return {.codes = reinterpret_cast<const uint8_t*>(w.values.get()),
          .scales = reinterpret_cast<const uint8_t*>(w.scales.get())};
}

}  // namespace nibble::backend::cuda
