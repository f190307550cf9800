// Processors of which no matrix instructions are known here: float alone is measured.

#include "backend/cpu/peak_loops.h"

namespace nibble::backend::cpu {

std::vector<PeakLoop> matrix_loops() { return {}; }

}  // namespace nibble::backend::cpu
