#include "backend/cuda/memory/expert_copies.h"

#include "backend/cuda/layout/packed.h"
#include "backend/cuda/memory/device_weights.h"
#include "backend/shards.h"
#include "backend/sliced_weight.h"

#include <algorithm>
#include <atomic>

namespace nibble::backend::cuda {

ExpertCopies::ExpertCopies(const BackendConfig& config, std::span<const MappedSource> files, int threads,
                           const ExpertSlots& slots, cudaStream_t stream)
    : config_(config),
      files_(files),
      threads_(threads),
      slots_(slots),
      parts_(expert_parts(config.dims)),
      bad_shown_(allocate_pinned(sizeof(int), "bad scales")),
      bad_scales_(allocate_device(sizeof(int), "bad scales")) {
  std::fill_n(bad_shown_.get(), sizeof(int), std::byte{});
  cuda_check(cudaMemsetAsync(bad_scales_.get(), 0, sizeof(int), stream));
  cuda_check(cudaStreamSynchronize(stream));  // the slabs have streams of their own
  for (Event& event : read_) event = make_event();
}

void ExpertCopies::add(const HostWeight& weight) {
  able_ = able_ && !is_recoded(weight) && (weight.odd.bytes.empty() || weight.odd_format == weight.format) &&
          packed_shape(weight.role, config_.dims).cols == matrix_shape(weight.role, config_.dims).cols;
  weights_[{weight.layer, weight.role}] = weight;
}

void ExpertCopies::copy(const ExpertCopy& part, const Launch& on) {
  try {
    enqueue(part, on);
  } catch (...) {
    able_ = false;  // the uploader stays as it failed; the host computes what comes next
    throw;
  }
}

void ExpertCopies::enqueue(const ExpertCopy& part, const Launch& on) {
  if (!slabs_) {
    from_.emplace(files_, threads_);
    slabs_.emplace(*from_);
  }
  cuda_check(cudaEventRecord(read_[static_cast<size_t>((part.part + 1) % 2)].get(), on.stream));
  slabs_->begin_after(read_[static_cast<size_t>(part.part % 2)]);
  for (const WeightRole role : {WeightRole::kGateUp, WeightRole::kDown}) {
    HostWeight cut = weights_.at({part.layer, role});
    const int64_t experts = cut.values.shape[0], first = parts_.first(part.part),
                  count = std::min<int64_t>(parts_.each, experts - first);
    if (count <= 0) continue;
    cut.slice = whole_of(role, held_dims(config_, cut));
    cut.slice->experts = {first, count};
    const HostWeight own = sliced(cut).weight;
    const Dims dims = held_dims(config_, own);
    const MatrixShape shape = packed_shape(role, dims);
    const ExpertSlots::Slot& slot = slots_.of(part.part);
    pack({.packing = layout::Packing::kMxfp4,
          .packed = role == WeightRole::kGateUp ? slot.gate_up : slot.down,
          .bad_scales = reinterpret_cast<int*>(bad_scales_.get()),
          .cols = shape.cols,
          .order = shape.order},
         nullptr, {},
         {.format = own.format,
          .rows = shape.rows,
          .cols = shape.cols,
          .even = own.values.bytes,
          .odd = own.odd.bytes,
          .scales = own.scales.bytes},
         *slabs_);
  }
  slabs_->end_before(on.stream);
  cuda_check(cudaMemcpyAsync(bad_shown_.get(), bad_scales_.get(), sizeof(int), cudaMemcpyDeviceToHost, on.stream));
  note_launch(expert_copy_kernel(), on, RunsOn::kHost);
}

void ExpertCopies::require() const {
  require_scales(std::atomic_ref(*reinterpret_cast<int*>(bad_shown_.get())).load());
}

}  // namespace nibble::backend::cuda
