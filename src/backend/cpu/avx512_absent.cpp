// A build for an architecture without AVX-512.
#include "backend/cpu/kernels.h"

namespace nibble::backend::cpu {

Kernels with_avx512(Kernels portable) { return portable; }

}  // namespace nibble::backend::cpu
