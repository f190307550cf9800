#include "backend/cpu/loaded_weight.h"

#include "base/error.h"

#include <functional>
#include <numeric>
#include <utility>

namespace nibble::backend::cpu {
namespace {

std::vector<float> decoded(WeightFormat format, const RawTensor& values, const Kernels& kernels) {
  const Shape& shape = values.shape;
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<float> out(static_cast<size_t>(count));
  kernels.decode(
      {.format = format, .values = reinterpret_cast<const uint8_t*>(values.bytes.data()), .cols = count, .rows = 1},
      out.data());
  return out;
}

void require_requantised(const Matrix& matrix, WeightRole role, WeightFormat as) {
  if ((as != WeightFormat::kMxfp4 && as != WeightFormat::kMxfp8) || matrix.cols() % kMxBlock != 0)
    throw Error(Code::kUnsupported, "cpu: {}: want mxfp4 or mxfp8 and rows of whole blocks of {}, found {} and {}",
                backend::name_of(role), kMxBlock, backend::name_of(as), matrix.cols());
}

}  // namespace

SlicedWeight part_of(const HostWeight& whole, ThreadPool& pool) {
  if (!whole.slice || whole.role != WeightRole::kGateUp) return sliced(whole, {}, &pool);
  HostWeight all_rows = whole;
  all_rows.slice->rows = {0, rows_per_expert(whole)};
  return sliced(all_rows, {}, &pool);
}

LoadedWeight loaded(LoadArgs args, const Kernels& kernels, ThreadPool& pool) {
  const HostWeight& weight = args.part.weight;
  const bool vector = !is_matrix(weight.role), has_odd = !weight.odd.bytes.empty();
  if (vector && (in_blocks(weight.format) || (has_odd && in_blocks(weight.odd_format))))
    throw Error(Code::kUnsupported, "cpu: {}: want bf16, f16 or f32, found {}", backend::name_of(weight.role),
                backend::name_of(weight.format));
  LoadedWeight own;
  if (vector) {  // small, read often: decoded once
    own.vector = decoded(weight.format, weight.values, kernels);
    if (has_odd) own.odd_vector = decoded(weight.odd_format, weight.odd, kernels);
    return own;
  }
  own.matrix.emplace(weight);
  if (has_odd) own.odd.emplace(odd_rows(weight));
  if (args.as) {
    for (std::optional<Matrix>* const matrix : {&own.matrix, &own.odd}) {
      if (!*matrix) continue;
      require_requantised(**matrix, weight.role, *args.as);
      (*matrix)->requantise(*args.as, kernels, pool);
    }
  } else {
    own.copies = std::move(args.part.copies);
  }
  if (args.whole.role == WeightRole::kGateUp) {
    own.first_row = args.whole.slice ? args.whole.slice->rows.first : 0;
    own.rows_per_expert = rows_per_expert(args.whole);
  }
  return own;
}

ExpertWeights weights_of(const LoadedExperts& experts) {
  const auto& [gate_up, gate_up_bias, down, down_bias] = experts;
  const int64_t tensors = gate_up.odd ? 2 : 1;  // that an expert's rows are in
  return {.gate = *gate_up.matrix,
          .first_gate_row = gate_up.first_row / tensors,
          .gate_rows = gate_up.rows_per_expert / tensors,
          .up = gate_up.odd ? &*gate_up.odd : nullptr,
          .gate_bias = gate_up_bias.vector,
          .up_bias = gate_up_bias.odd_vector,
          .down = *down.matrix,
          .down_bias = down_bias.vector};
}

}  // namespace nibble::backend::cpu
