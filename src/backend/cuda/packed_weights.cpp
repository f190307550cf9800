#include "backend/cuda/packed_weights.h"

#include "backend/cuda/kernels/any/gemv.h"
#include "base/error.h"

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

using layout::Packing;
using layout::RowOrder;

constexpr int64_t kAlignment = 256;
int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct MatrixShape {
  int64_t rows = 0, cols = 0;
  RowOrder order = RowOrder::kPlain;
};

// Experts are rows of one tall matrix.
MatrixShape shape_of(WeightRole role, const Dims& d) {
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

Packer::Packer(Uploader& uploader, cudaStream_t stream)
    : uploader_(uploader),
      stream_(stream),
      slab_(allocate_device(kSlabBytes, "packing")),
      scale_counts_(allocate_device(sizeof(ScaleCounts), "packing")) {
  cuda_check(cudaMemsetAsync(scale_counts_.get(), 0, sizeof(ScaleCounts), stream_));
}

void Packer::run(const Job& job) {
  constexpr int64_t kStep = 64;  // rows: whole tiles and whole heads
  const int64_t rows = job.pack.rows, cols = job.pack.cols;
  const auto row_bytes = static_cast<int64_t>(job.values.size()) / rows;
  const auto scale_bytes = static_cast<int64_t>(job.scales.size()) / rows;
  const int64_t most = std::max(kStep, kSlabBytes / (row_bytes + scale_bytes + 1) / kStep * kStep);
  check(align(most * row_bytes) + most * scale_bytes <= kSlabBytes, "64 rows fit the slab");
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first), values = count * row_bytes, scales = count * scale_bytes;
    uploader_.copy(slab_.get(), job.values.subspan(static_cast<size_t>(first * row_bytes), static_cast<size_t>(values)),
                   stream_);
    uploader_.copy(slab_.get() + align(values),
                   job.scales.subspan(static_cast<size_t>(first * scale_bytes), static_cast<size_t>(scales)), stream_);
    PackArgs pack = job.pack;
    const auto* device = reinterpret_cast<const uint8_t*>(slab_.get());
    pack.values = device;
    pack.scales = device + align(values);
    if (job.quantize) {
      if (codes_ == nullptr) {
        codes_ = allocate_device(kSlabBytes / 2, "requantised weights");
        scales_ = allocate_device(kSlabBytes / 64, "requantised weights");
      }
      auto* codes = reinterpret_cast<uint8_t*>(codes_.get());
      auto* codes_scales = reinterpret_cast<uint8_t*>(scales_.get());
      quantize_weights({.packing = pack.packing,
                        .from = reinterpret_cast<const Bf16*>(device),
                        .values = codes,
                        .scales = codes_scales,
                        .rows = count,
                        .cols = cols},
                       stream_);
      pack.values = codes;
      pack.scales = codes_scales;
    }
    pack.rows = count;
    pack.packed = job.pack.packed + layout::packed_bytes(pack.packing, first, cols);
    auto* const counts = reinterpret_cast<ScaleCounts*>(scale_counts_.get());
    pack.bad_scales = &counts->bad;
    pack.wide_scales = &counts->wide;
    pack_weights(pack, stream_);
  }
}

Packer::ScaleCounts Packer::scale_counts() const {
  ScaleCounts counts;
  cuda_check(cudaMemcpyAsync(&counts, scale_counts_.get(), sizeof counts, cudaMemcpyDeviceToHost, stream_));
  cuda_check(cudaStreamSynchronize(stream_));
  return counts;
}

PackedWeights::Qkv& PackedWeights::qkv(int layer) {
  const Dims& d = config_.dims;
  const int64_t rows = d.q_width() + 2 * d.kv_width();
  qkv_.resize(std::max(qkv_.size(), static_cast<size_t>(layer) + 1));
  Qkv& own = qkv_[static_cast<size_t>(layer)];
  if (own.matrix == nullptr) {
    const Packing packing = packing_of(WeightRole::kQ, config_.dense);
    own = {allocate_device(layout::packed_bytes(packing, rows, d.hidden), "q, k and v"),
           allocate_device(rows * 2, "q, k and v biases")};
  }
  return own;
}

PackedWeights::Bias PackedWeights::qkv_bias(WeightRole role, int layer) {
  auto* whole = reinterpret_cast<Bf16*>(qkv(layer).bias.get());
  return {whole + first_row(role, config_.dims), whole};
}

PackedWeights::Matrix PackedWeights::upload(const HostWeight& weight, Uploader& uploader) {
  const bool experts = weight.role == WeightRole::kGateUp || weight.role == WeightRole::kDown;
  const WeightFormat want = experts ? WeightFormat::kMxfp4 : WeightFormat::kBf16;
  if (weight.format != want)
    throw Error(Code::kUnsupported, "[cuda] {}: want {}, found {}", backend::name_of(weight.role),
                backend::name_of(want), backend::name_of(weight.format));
  const MatrixShape shape = shape_of(weight.role, config_.dims);
  const Packing packing = packing_of(weight.role, config_.dense);
  std::byte *whole = nullptr, *part = nullptr;
  if (is_qkv(weight.role)) {
    whole = qkv(weight.layer).matrix.get();
    part = whole + layout::packed_bytes(packing, first_row(weight.role, config_.dims), shape.cols);
  } else {
    matrices_.push_back(
        allocate_device(layout::packed_bytes(packing, shape.rows, shape.cols), backend::name_of(weight.role)));
    whole = part = matrices_.back().get();
  }
  if (!packer_) packer_.emplace(uploader, stream_);
  packer_->run({.pack = {.packing = packing,
                         .packed = reinterpret_cast<uint8_t*>(part),
                         .rows = shape.rows,
                         .cols = shape.cols,
                         .order = shape.order},
                .quantize = config_.dense.of(weight.role),
                .values = weight.values.bytes,
                .scales = weight.scales.bytes});
  return {reinterpret_cast<const uint8_t*>(whole), packing};
}

void PackedWeights::finish() {
  if (!packer_) return;
  const Packer::ScaleCounts counts = packer_->scale_counts();
  packer_.reset();
  if (counts.bad > 0)
    throw Error(Code::kUnsupported, "[cuda] {} blocks of 32 weights have a scale above 2^{} or are not finite",
                counts.bad, layout::kMaxScaleCode - 127);
  wide_scales_ = wide_scales_ || counts.wide > 0;
}

}  // namespace nibble::backend::cuda
