#pragma once
// Weights as the loops read them: a matrix where it was mapped, a vector as floats.

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/moe.h"
#include "backend/sliced_weight.h"
#include "backend/weights.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nibble::backend::cpu {

struct LoadedWeight {
  std::optional<Matrix> matrix, odd;  // odd: HostWeight
  std::vector<float> vector, odd_vector;
  std::vector<Buffer> copies;                  // that the matrix reads
  int64_t first_row = 0, rows_per_expert = 0;  // of kGateUp: those of each expert begin here, among so many
};

// What is read of a weight. A gate_up keeps all rows: those of a slice are read where they lie.
[[nodiscard]] SlicedWeight part_of(const HostWeight& whole, ThreadPool& pool);

// `part`: of `whole`; as: what a matrix is requantised to, if anything. Throws Error(kUnsupported) for a format that is
// not read, or not made.
struct LoadArgs {
  const HostWeight& whole;
  SlicedWeight part;
  std::optional<WeightFormat> as;
};
[[nodiscard]] LoadedWeight loaded(LoadArgs args, const Kernels& kernels, ThreadPool& pool);

// REQUIRES the roles that their names say.
struct LoadedExperts {
  const LoadedWeight &gate_up, &gate_up_bias, &down, &down_bias;
};
[[nodiscard]] ExpertWeights weights_of(const LoadedExperts& experts);

}  // namespace nibble::backend::cpu
