#pragma once
// Sampling rows as the device reads them: what depends on a row's history is worked out on the host.

#include "backend/cuda/launch/kernel_table.h"
#include "backend/sampling.h"

#include <span>
#include <vector>

namespace nibble::backend::cuda {

struct SampleInputs {
  std::vector<SampleRowParams> params;  // [rows]
  std::vector<LogitShift> shifts;
  std::vector<float> biases;
  std::vector<uint32_t> masks;  // of the rows that have one, all of the same length
  int most_shifts = 0;
  bool filters = false;
};

// Fills `into`, whose memory is used again.
void fill_sample_inputs(std::span<const SampleRow> rows, SampleInputs& into);

}  // namespace nibble::backend::cuda
