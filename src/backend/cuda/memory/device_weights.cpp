#include "backend/cuda/memory/device_weights.h"

#include "backend/cost.h"
#include "backend/sliced_weight.h"
#include "base/error.h"

#include <array>

namespace nibble::backend::cuda {
namespace {

bool is_qkv_bias(WeightRole role) {
  return role == WeightRole::kQBias || role == WeightRole::kKBias || role == WeightRole::kVBias;
}

bool is_experts(WeightRole role) { return role == WeightRole::kGateUp || role == WeightRole::kDown; }

// Values of what the backend holds: of its heads, its inner width and its rows of logits, but of the whole embedding.
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

void check_format(const HostWeight& weight) {
  using enum WeightFormat;
  const WeightFormat found = weight.format;
  const bool experts = is_experts(weight.role);
  const bool served = found == kGgmlMxfp4 || (experts ? found == kMxfp4 : found != kMxfp4 && found != kMxfp8);
  if (served) return;
  throw Error(Code::kUnsupported, "cuda: {}: want {}, found {}", backend::name_of(weight.role),
              experts ? "mxfp4" : "bf16, f16, f32, ggml q8_0 or ggml mxfp4", backend::name_of(found));
}

}  // namespace

DeviceWeights::DeviceWeights(const Options& options, cudaStream_t stream) : options_(options), stream_(stream) {
  if (options_.matrices == Matrices::kPacked) packed_.emplace(options_.config, stream);
}

WeightHandle DeviceWeights::upload(const HostWeight& weight) {
  if (options_.config.head) return upload_head(weight);
  const Dims d = held_dims(options_.config, weight.role);
  HostWeight cut = weight;
  const bool fills = packed_ && weight.role == WeightRole::kDown && packed_shape(weight.role, d).cols != d.inter;
  if (!cut.slice && fills) cut.slice = whole_of(weight.role, d);
  if (!cut.slice) return upload_all(weight);
  const SlicedWeight part = sliced(cut, filled(cut, d, packed_.has_value()));
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
  Uploaded own;
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
  check_format(weight);
  if (!weight.odd.bytes.empty() && weight.odd_format != weight.format)
    throw Error(Code::kUnsupported, "cuda: layer {} {}: want gate and up in one format, found {} and {}", weight.layer,
                backend::name_of(weight.role), backend::name_of(weight.format), backend::name_of(weight.odd_format));
  if (!uploader_) uploader_.emplace(options_.files, options_.upload_threads, options_.cached);
  if (!slabs_) slabs_.emplace(*uploader_);
  const Dims d = held_dims(options_.config, weight.role);
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
  Uploaded own;
  if (packed_ && is_packed(weight.role)) {
    own.matrix = packed_->upload(weight.role, weight.layer, source, *slabs_);
  } else if (packed_ && is_qkv_bias(weight.role)) {
    const PackedWeights::Bias bias = packed_->qkv_bias(weight.role, weight.layer);
    put(source, reinterpret_cast<std::byte*>(bias.part), nullptr);
    own.qkv_bias = bias.whole;
  } else {
    const bool mxfp4 = is_experts(weight.role);
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
}

MxfpMatrix DeviceWeights::mxfp4(WeightHandle handle) const {
  const Uploaded& w = of(handle);
  return {.codes = reinterpret_cast<const uint8_t*>(w.values.get()),
          .scales = reinterpret_cast<const uint8_t*>(w.scales.get())};
}

}  // namespace nibble::backend::cuda
